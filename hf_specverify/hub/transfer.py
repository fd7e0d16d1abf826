"""Calibrations to the Hub and from it, through its own client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_token, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from .names import COSTS, RECORD, TENSORS, UPLOADED
from .records import is_hub_id


def download(repo_id: str, revision: str | None = None, token: str | bool | None = None, **options: Any) -> Path:
    """Fetch the data of a calibration, and nothing else of its repository, into the Hub's cache.

    Args:
        repo_id: "user/name".
        revision: a branch, tag or commit; None is the main branch.
        token: of a user who may read it; None is the one that is logged in.
        options: for `snapshot_download`: cache_dir, force_download, local_files_only.

    Returns:
        The folder in the cache.

    Raises:
        ValueError: if `repo_id` can't be the name of a repository.
        OSError: if it can't be fetched; the message says why.
    """
    if not is_hub_id(repo_id) or "/" not in repo_id:
        raise ValueError(f"id_or_folder must be a folder or a name on the Hub (user/name), got {repo_id!r}")
    with _explained(f"calibration {repo_id!r}", revision, token):
        found = snapshot_download(
            repo_id, revision=revision, token=token, allow_patterns=[RECORD, TENSORS, COSTS], **options
        )
    return Path(found)


def upload(
    folder: Path, repo_id: str, *, private: bool | None = None, revision: str | None = None, token: str | None = None
) -> str:
    """Put the files of a calibration into a repository, in one commit; other files of the folder stay here.

    Args:
        folder: with the files.
        repo_id: "user/name", or a name of one's own; it is made if it isn't there.
        private: whether a new repository is private; None is the account's default.
        revision: the branch, which is made if it isn't there; None is the main one.
        token: of a user who may write; None is the one that is logged in.

    Returns:
        The commit.

    Raises:
        ValueError: if `repo_id` can't be the name of a repository.
        OSError: if the Hub refuses; the message says why.
    """
    if not is_hub_id(repo_id):
        raise ValueError(f"repo_id must be a name on the Hub (user/name), got {repo_id!r}")
    hub = HfApi(token=token)
    with _explained(f"repository {repo_id!r}", revision, token):
        repo_id = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if revision is not None:
            hub.create_branch(repo_id, branch=revision, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=revision,
            allow_patterns=list(UPLOADED),
            commit_message="Calibration for speculative decoding",
        )
    return str(commit.oid)


@contextmanager
def _explained(what: str, revision: str | None, token: str | bool | None) -> Iterator[None]:
    """Errors of the client, with what to do about them."""
    try:
        yield
    except GatedRepoError as error:
        raise OSError(f"{what} is gated: ask for access on its page, and log in (hf auth login)") from error
    except RepositoryNotFoundError as error:
        raise OSError(f"{what} is not on the Hub, or is private; {_about(token)}") from error
    except RevisionNotFoundError as error:
        raise OSError(f"{what} has no revision {revision!r}") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise OSError(f"{what} is not in the local cache, and the Hub can't be reached or must not be") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise OSError(f"{what}: the Hub refuses access ({status}); {_about(token)}") from error
        raise OSError(f"{what}: the Hub answers {status}: {error.server_message or error}") from error


def _about(token: str | bool | None) -> str:
    if token or (token is None and get_token()):
        return "the token in use does not allow it"
    return "there is no token: log in (hf auth login) or set HF_TOKEN"
