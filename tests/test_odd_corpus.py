"""No odd input is left out: tests walk whole groups of them, and here the groups are all there is."""

from __future__ import annotations

from odd_corpus import GROUPS, SHARDS, Corpus

KINDS = {
    "images": {"decodes", "clear_error", "decodes_or_clear_error", "bounded"},
    **{group: {"records", "records_or_clear_error"} for group in SHARDS},
    "arrow": {"control", "cache_dropped"},
}
"""What may have to come of an input; what walks a group knows what each means."""


def test_every_file_is_in_a_group_that_is_walked(corpus: Corpus) -> None:
    """Images by decode, verify and service; shards by records, index, verify, worker start and service; Arrow
    files by indexes and the cache."""
    walked = [file for group in GROUPS for file in corpus.of(group)]
    assert sorted(file.name for file in walked) == sorted(file.name for file in corpus.files)
    there = {str(path.relative_to(corpus.folder)) for path in corpus.folder.rglob("*") if path.is_file()}
    assert {file.name for file in walked} == there - {"manifest.json"}
    assert len(walked) == len(there - {"manifest.json"})
    for file in walked:
        assert file.expect["kind"] in KINDS[file.group], file.name
