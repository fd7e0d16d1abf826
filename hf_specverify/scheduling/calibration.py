"""How likely a draft token is to be accepted, given its signals: learnt from what verification did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..hub.origin import Origin
from .binning import cell_indices, count, default_bins, make_edges
from .held_out import held_out
from .information import InformationTable, information_table, most_telling
from .isotonic import SIGNS, monotone, shrunken
from .quality import CalibrationError, Reliability, calibration_error, reliability
from .samples import Names, Samples, check_names

if TYPE_CHECKING:
    from .cost import CostModel
from .signals import Direction, directions_of


@dataclass(frozen=True, eq=False)
class CalibrationTable:
    """P̂(accept | signals) as a grid of counts over adaptive bins (2509.24328, section 4).

    Build one with `fit` or `from_pretrained`. Tables of equal signals and edges add up.

    Attributes:
        names: the signals of the grid, one to three.
        edges: the inner edges (K - 1,) float32 of every signal's bins.
        number: (K_1, …) int64, the samples of each cell.
        outcome, squares: float64, the sums of their outcomes, and of the squares.
        directions: how the prediction may change with each signal.
        metadata: what the caller noted; JSON values.
        samples: every single sample, from which held-out figures are computed; not saved, None in a loaded table.
        sets: the signal sets for `information_gain`; empty means every one of up to three signals.
        origin: the models it is of, and how it was made; what is None there is not known, and not checked.
    """

    names: Names
    edges: dict[str, Tensor]
    number: Tensor
    outcome: Tensor
    squares: Tensor
    directions: dict[str, Direction]
    metadata: dict[str, Any] = field(default_factory=dict)
    samples: Samples | None = None
    sets: tuple[Names, ...] = ()
    origin: Origin = field(default_factory=Origin)

    @classmethod
    def fit(
        cls,
        signals: Mapping[str, Tensor],
        outcome: Tensor,
        groups: Tensor | None = None,
        *,
        sets: Sequence[Sequence[str]] | None = None,
        bins: int | None = None,
        monotone: Mapping[str, Direction] | str | None = "auto",
        edges: Mapping[str, Tensor] | None = None,
        metadata: Mapping[str, Any] | None = None,
        origin: Origin | None = None,
    ) -> CalibrationTable:
        """Count samples.

        Args:
            signals: (n,) values for every name. Names of one's own are allowed.
            outcome: (n,) in [0, 1], acceptance probabilities min(1, p/q), which have less variance, or 0 and 1; of
                every position that verification reached.
            groups: (n,) integers, the sequence that each sample is from, for held-out figures. None: each on its own.
            sets: signal sets of one to three names; the first is the table's own. None: all signals together where
                these are up to three, else those of them that tell most (held out, added one by one).
            bins: per signal; None goes by n.
            monotone: "increasing", "decreasing" or "none" for each name; "auto" takes the directions of `signals`;
                None holds nothing to a direction.
            edges: the inner edges of another table, which this one is then to be added to; their names are the
                table's set.
            metadata: kept as it is.
            origin: the models and settings that the samples are from.

        Raises:
            ValueError: naming the argument that is not as described.
        """
        samples = Samples.checked(signals, outcome, groups)
        known = tuple(samples.signals)
        checked = tuple(check_names("sets", names, known) for names in sets or ())
        directions = directions_of(known, monotone)
        if edges is not None:
            names = check_names("edges", tuple(edges), known)
            chosen = {name: _checked_edges(name, edges[name]) for name in names}
        else:
            names = checked[0] if checked else known
            if len(names) > 3:
                names = most_telling(samples, directions)
            width = bins if bins is not None else default_bins(len(samples.outcome), len(names))
            if width < 1:
                raise ValueError(f"bins must be at least 1, got {bins}")
            chosen = {name: make_edges(name, samples.signals[name], width) for name in names}
        counts = count(names, chosen, samples.signals, samples.outcome)
        return cls(names, chosen, *counts, directions, dict(metadata or {}), samples, checked, origin or Origin())

    @cached_property
    def probabilities(self) -> Tensor:
        """The predictions, a float32 grid: shrunken means, made monotone."""
        values = shrunken(self.number, self.outcome, self.squares)
        signs = [SIGNS[self.directions[name]] for name in self.names]
        return monotone(values, self.number, signs).clamp(0, 1).float()

    def predict(self, signals: Mapping[str, Tensor]) -> Tensor:
        """Look predictions up.

        Args:
            signals: for every one of `names` a tensor, of one shape or shapes that broadcast; others are ignored.

        Returns:
            Acceptance probabilities, float32, in that shape, on the device of the signals.

        Raises:
            ValueError: naming a signal that is missing.
        """
        missing = [name for name in self.names if name not in signals]
        if missing:
            raise ValueError(f"signals must hold {list(self.names)}, got {list(signals)} without {missing}")
        cells = cell_indices(self.names, self.edges, signals)
        return self.probabilities.flatten().to(cells.device)[cells]

    @property
    def mean(self) -> float:
        """Acceptance over all that was counted; 0.5 where nothing was."""
        number = float(self.number.sum())
        return float(self.outcome.sum()) / number if number else 0.5

    def marginal(self, names: Sequence[str]) -> CalibrationTable:
        """The table of some of the signals, the others summed out; in the order of the whole table.

        Raises:
            ValueError: if a name is not one of the table's, or none is left.
        """
        if not names or not set(names) <= set(self.names):
            raise ValueError(f"names must be some of {list(self.names)}, got {list(names)}")
        kept = tuple(name for name in self.names if name in names)
        axes = [axis for axis, name in enumerate(self.names) if name not in kept]
        if not axes:
            return self
        number, outcome, squares = (part.sum(dim=axes) for part in (self.number, self.outcome, self.squares))
        edges = {name: self.edges[name] for name in kept}
        origin = replace(self.origin, figures=None)
        return CalibrationTable(kept, edges, number, outcome, squares, self.directions, self.metadata, origin=origin)

    def __add__(self, other: CalibrationTable) -> CalibrationTable:
        """Merge the counts of two tables; their groups are taken for different ones.

        Of metadata and origin, what is equal stays.

        Raises:
            ValueError: naming the field in which they differ.
        """
        if not isinstance(other, CalibrationTable):
            return NotImplemented
        for name in ("names", "directions"):
            mine, theirs = (_of_grid(table, name) for table in (self, other))
            if mine != theirs:
                raise ValueError(f"{name} must be equal to be added, got {mine} and {theirs}")
        for name in self.names:
            if not torch.equal(self.edges[name], other.edges[name]):
                raise ValueError(f"edges[{name!r}] must be equal to be added; fit with edges=table.edges")
        same = {key: value for key, value in self.metadata.items() if other.metadata.get(key) == value}
        samples = self.samples + other.samples if self.samples is not None and other.samples is not None else None
        return replace(
            self,
            number=self.number + other.number,
            outcome=self.outcome + other.outcome,
            squares=self.squares + other.squares,
            metadata=same,
            samples=samples,
            origin=replace(self.origin.common(other.origin), figures=None),
        )

    def information_gain(self) -> InformationTable:
        """What every signal set tells about acceptance, held out, see `InformationTable`.

        Raises:
            ValueError: for a table without samples, as loaded ones are.
        """
        return information_table(self._samples(), self.directions, self.sets)

    def calibration_error(self) -> CalibrationError:
        """How good held-out predictions of this signal set are, overall and by position, see `CalibrationError`.

        Raises:
            ValueError: for a table without samples, as loaded ones are.
        """
        return calibration_error(self._samples(), self.names, self.directions)

    def reliability(self, bins: int = 10) -> Reliability:
        """Predicted against observed acceptance: held out where there are samples, else of the table's own cells."""
        if self.samples is not None:
            predicted = held_out(self.samples, self.names, self.directions).predicted
            return reliability(predicted, self.samples.outcome, torch.ones_like(predicted), bins)
        full = self.number > 0
        number = self.number[full].double()
        return reliability(self.probabilities[full].double(), self.outcome[full] / number, number, bins)

    def plot_reliability(self, path: str | PathLike[str] | None = None, bins: int = 10) -> Any:
        """Draw `reliability`; saves the figure at `path` if given. Raises ImportError without matplotlib."""
        from .reliability_plot import plot_reliability

        return plot_reliability(self.reliability(bins), self.names, path)

    def save_pretrained(
        self, folder: str | PathLike[str], *, costs: CostModel | None = None, plots: bool = False
    ) -> None:
        """Write the folder that `from_pretrained` reads and the Hub takes; the single samples are left out.

        Data (`calibration.safetensors`, `calibration.json`), a card unless someone else's is there, and
        `custom_generate/` for `generate(custom_generate=folder, trust_remote_code=True, assistant_model=…)`.

        Args:
            folder: made if need be.
            costs: measured costs, written as `cost_table.json`.
            plots: draw the reliability too, where matplotlib is installed.
        """
        from ..hub.artefact import write_artefact

        write_artefact(self, folder, costs=costs, plots=plots)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        costs: CostModel | None = None,
        private: bool | None = None,
        revision: str | None = None,
        token: str | None = None,
    ) -> str:
        """Write the same folder, with plots where matplotlib is installed, to a repository on the Hub.

        Args:
            repo_id: "user/name", or a name of one's own; the repository is made if it isn't there.
            costs: measured costs to go with it.
            private: whether a new repository is private; None is the account's default.
            revision: a branch, made if it isn't there; None is the main one.
            token: of the Hub; None is the one that is logged in.

        Returns:
            The commit, which `from_pretrained` takes as revision.

        Raises:
            ValueError: for a name that the Hub can't have.
            OSError: if the Hub refuses; the message says why.
        """
        from ..hub.artefact import push_table

        return push_table(self, repo_id, costs=costs, private=private, revision=revision, token=token)

    @classmethod
    def from_pretrained(cls, id_or_folder: str | PathLike[str], revision: str | None = None) -> CalibrationTable:
        """Read a table from a folder, or from a repository on the Hub. Files are data: no code of theirs is run.

        Args:
            id_or_folder: a folder, or "user/name".
            revision: branch, tag or commit on the Hub; None is the main branch.

        Raises:
            ValueError: if there is no such folder and it can't be a name on the Hub, if a folder is given a `revision`,
                or if a file is not as `save_pretrained` writes it; the message names the field.
            OSError: if the Hub does not give it; the message says why.
        """
        from .calibration_files import load_table

        return load_table(id_or_folder, revision)

    def _samples(self) -> Samples:
        if self.samples is None:
            raise ValueError("samples: a saved table does not have them; held-out figures need a table fresh from fit")
        return self.samples


def _of_grid(table: CalibrationTable, name: str) -> object:
    return table.names if name == "names" else [table.directions[signal] for signal in table.names]


def _checked_edges(name: str, edges: Tensor) -> Tensor:
    edges = edges.detach().cpu().float()
    if edges.ndim != 1 or not bool(edges.isfinite().all()) or not bool((edges[1:] > edges[:-1]).all()):
        raise ValueError(f"edges[{name!r}] must be finite and increasing, got {edges.tolist()}")
    return edges
