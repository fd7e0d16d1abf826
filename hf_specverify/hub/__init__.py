"""Calibrations as artefacts: folders and Hub repositories that say which models they are of."""
