"""The loop: batch state, model runners with their caches, masks, processors and stopping at every position.

Everything that depends on the release of the host library lives in this folder; nothing outside imports
``transformers.cache_utils``.
"""
