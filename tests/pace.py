"""Which tests are slow: what `python -m pytest` leaves out, and `-m slow` runs.

The rule: every kind of proof stays among the fast ones. Of a test that runs over many cases, some cases stay; a test of
its own is slow where another proves the same in less time, or where it proves an edge at the price of a hundred others.
A test that is not named here is fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

EVERY: dict[str, int] = {
    "cli/test_ablate.py::test_what_cannot_be_is_said": 3,
    "cli/test_analyses.py::test_a_padded_text": 2,
    "cli/test_analyses.py::test_json_alone_on_stdout": 2,
    "cli/test_analyses.py::test_names_of_files_are_shown_as_text": 2,
    "cli/test_analyses.py::test_texts_are_shown_as_text": 3,
    "cli/test_asked.py::test_arrays_of_ones_own": 4,
    "cli/test_asked.py::test_no_matrix_is_fetched_and_nothing_changes": 13,
    "cli/test_different_axes.py::test_every_view_of_sites_over_different_axes": 5,
    "cli/test_hints.py::test_hints_name_options_of_the_command": 8,
    "cli/test_idle.py::test_one_that_does_something_is_not": 3,
    "cli/test_inspect.py::test_means_and_maxima": 2,
    "cli/test_inspect.py::test_mistakes": 3,
    "cli/test_saved_views.py::test_every_view_is_saved_in_every_format": 20,
    "cli/test_qkv.py::test_empty_short_and_long_texts": 3,
    "cli/test_report_page.py::test_nothing_is_wider_than_the_window": 3,
    "cli/test_scale.py::test_misuse": 3,
    "cli/test_sites.py::test_a_feed_by_the_template_runs": 3,
    "explore/test_explore.py::test_screens_are_exactly_these": 3,
    "interventions/test_sections.py::test_outputs_at_one_position_are_those_of_all": 5,
    "interventions/test_sections.py::test_shared_layers_change_nothing": 4,
    "explore/test_reader.py::test_a_head_is_saved_in_every_format": 4,
    "explore/test_terminal.py::test_no_more_colours_than_there_are": 3,
    "explore/test_terminal.py::test_the_terminal_is_restored": 8,
    "graph/test_soundness.py::test_a_few_numbers_that_ask_for_a_huge_tensor_allocate_nothing": 9,
    "interventions/test_edits.py::test_every_intervention_is_what_it_is_in_numpy": 5,
    "interventions/test_edits.py::test_unedited_runs_are_the_models": 5,
    "interventions/test_holds.py::test_a_knocked_out_weight_is_0_and_the_rest_sums_to_1": 2,
    "interventions/test_holds.py::test_what_changes_nothing_gives_what_the_model_gives": 2,
    "interventions/test_lens.py::test_a_logit_is_the_sum_of_its_parts": 4,
    "interventions/test_lens.py::test_the_lens_reads_the_stream_after_every_layer": 5,
    "processors/test_told.py::test_commands_say_it_once": 2,
    "sites/test_bands.py::test_weights_follow_from_query_and_key": 5,
    "sites/test_group_query_attention.py::test_a_window_sized_cache": 4,
    "sites/test_group_query_attention.py::test_options_match_the_kernel": 3,
    "sites/test_multi_head_attention.py::test_masks_and_direction_match_the_kernel": 7,
    "sites/test_prescaled.py::test_a_scale_before_the_operator": 5,
    "sites/test_registry.py::test_every_opset_gives_the_same": 7,
    "sites/test_sparse_attention.py::test_it_matches_the_kernel": 5,
    "test_bfloat16.py::test_bfloat16_is_computed_in_float32": 3,
    "test_cli.py::test_a_reader_that_leaves_is_no_error": 2,
    "test_every_command.py::test_feeds": 11,
    "test_every_command.py::test_json_is_one_document_whatever_happens": 3,
    "test_every_command.py::test_models": 11,
    "test_every_command.py::test_options": 11,
    "test_every_command.py::test_texts": 4,
    "test_families.py::test_attention_is_what_the_framework_computed": 2,
    "test_families.py::test_lines_of_the_readme_run": 2,
    "test_faults.py::test_a_clock_that_jumps": 4,
    "test_faults.py::test_a_disk_that_is_full_keeps_what_was_there": 11,
    "test_faults.py::test_a_file_is_replaced_with_force_alone": 6,
    "test_faults.py::test_a_folder_that_is_not_there": 4,
    "test_faults.py::test_a_folder_that_takes_no_file": 10,
    "test_faults.py::test_a_reader_that_leaves_makes_no_noise": 4,
    "test_faults.py::test_a_stdout_that_is_full": 4,
    "test_faults.py::test_entries_that_are_damaged_are_as_good_as_none": 7,
    "test_faults.py::test_names_of_files": 4,
    "test_faults.py::test_streams_that_are_closed": 5,
    "test_fuzz.py::test_nothing_that_is_broken_breaks_attnx": 10,
    "test_hostile.py::test_model_files": 3,
    "test_hostile.py::test_no_escape_from_a_text_reaches_the_terminal": 6,
    "test_hostile.py::test_texts_that_are_hardly_texts": 10,
    "test_hostile.py::test_what_does_not_exist_is_named_with_what_does": 6,
    "test_idioms.py::test_every_spelling_gives_the_oracles_arrays": 5,
    "test_interrupt.py::test_an_interrupt_leaves_no_half_of_a_file": 8,
    "test_interrupt.py::test_an_interrupted_explorer_gives_the_terminal_back": 3,
    "test_lies.py::test_every_command_that_is_touched_says_so": 13,
    "test_lies.py::test_what_is_an_average_is_called_one": 3,
    "test_lookups.py::test_a_tokenizer_of_another_model": 3,
    "test_numerals.py::test_every_option_that_takes_a_number": 3,
    "test_scan.py::test_killed_at_any_moment": 6,
    "test_scan.py::test_what_changes_a_row_makes_another_scan": 2,
    "test_scan.py::test_what_the_system_refuses_is_said": 3,
    "test_schemas.py::test_one_wrong_cell_is_found": 3,
    "test_spellings.py::test_random_spellings_give_numpys_arrays": 8,
    "test_spellings.py::test_rounding_between_the_steps_hides_neither_heads_nor_scale": 2,
    "test_spellings.py::test_what_onnxruntime_makes_of_a_spelling_is_the_same_attention": 3,
    "test_zoo.py::test_attention_is_what_the_framework_computed": 2,
    "view/test_figure.py::test_formats": 2,
    "view/test_figure.py::test_scales": 2,
    "view/test_json.py::test_schemas_that_ship_are_schemas_and_stand_alone": 3,
    "view/test_save.py::test_html_loads_nothing": 4,
    "view/test_save.py::test_svg_is_well_formed_and_loads_nothing": 4,
    "view/test_scenes.py::test_a_pipe_that_is_as_wide_as_it_takes_gets_everything_and_no_padding": 4,
    "view/test_scenes.py::test_exact_text": 2,
    "view/test_scenes.py::test_no_line_is_wider_than_the_terminal": 7,
    "view/test_scenes.py::test_sixteen_colours_are_the_themes_own": 4,
    "view/test_scenes.py::test_terminals_get_colours_and_nothing_else": 4,
    "view/test_table.py::test_rows_never_wrap_and_columns_are_straight": 3,
}
"""Of its cases in order, one in so many is fast: beginning with the first, so that a number which shares no factor with
the length of the innermost list meets every value of every list."""

KEPT: dict[str, Sequence[str]] = {
    "cli/test_ablate.py::test_a_mean_over_a_corpus_stands_in_place_of_a_head": (),
    "cli/test_ablate.py::test_the_edge_from_it_to_animal_matters_in_the_head_that_points": (),
    "cli/test_asked.py::test_a_long_text_flows_through_means": ("all",),
    "cli/test_asked.py::test_a_mean_over_heads_is_made_in_the_graph": ("--max heads",),
    "cli/test_asked.py::test_of_a_long_text_one_layer_is_taken_apart": ("--query it@10",),
    "cli/test_asked.py::test_texts_of_a_file_are_as_one_by_one": ("heads",),
    "cli/test_asked.py::test_the_overview_of_a_long_text_is_reduced_in_the_graph": ("",),
    "cli/test_coref.py::test_our_own_pairs_are_at_chance_for_minilm": (),
    "cli/test_diff.py::test_models_with_different_numbers_of_layers": (),
    "cli/test_docs_notebook.py::test_the_notebook_runs_and_shows_what_it_shows": (),
    "cli/test_groups.py::test_flow_averages_what_each_token_gives": (),
    "cli/test_wording.py::test_what_another_error_said_is_put_in_whole": (),
    "explore/test_explore.py::test_another_size_is_drawn_as_if_it_had_been_the_first": (),
    "explore/test_explore.py::test_moves_stop_at_the_ends": (),
    "scripts/test_make_pictures.py::test_pictures_are_written_small": (),
    "scripts/test_tiny_gpt.py::test_heads_are_what_the_page_says": (),
    "scripts/test_tiny_gpt.py::test_tokenizer_is_the_one_that_its_text_gives": (),
    "sites/test_bands.py::test_taps_change_nothing": (),
    "sites/test_bands.py::test_what_onnxruntime_saves_is_the_same": (),
    "study/test_speech.py::test_one_time_off_is_found": (),
    "test_batch.py::test_batches_give_what_single_runs_give": ("7",),
    "test_cache.py::test_several_processes_share_it": (),
    "test_cli.py::test_ctrl_c_ends_a_real_process": (),
    "test_distributed.py::test_a_cluster_that_is_not_there": (),
    "test_distributed.py::test_two_workers_give_the_bytes_of_one_process": (),
    "test_docs.py::test_a_page_shows_what_attnx_prints": ("docs/tutorial.md",),
    "test_docs.py::test_a_page_shows_what_its_commands_print": ("README.md",),
    "test_faults.py::test_a_full_disk_leaves_nothing_behind": (),
    "test_faults.py::test_a_kill_in_the_middle_harms_no_later_run": ("1-writing",),
    "test_faults.py::test_homes_and_caches_that_are_not_there": (
        "{'HOME': None, 'XDG_CACHE_HOME': None, 'ATTNX_CACHE': None}",
    ),
    "test_faults.py::test_terminals_of_all_kinds": ("{'COLUMNS': '20'}",),
    "test_faults.py::test_two_at_once_on_a_cold_cache": (),
    "test_reduced.py::test_distances_of_a_head_or_of_each_row": ("0-30-2e-06",),
    "test_reference.py::test_a_page_is_what_the_program_gives": (
        "reference/commands.md",
        "reference/json.md",
        "reference/python.md",
    ),
    "test_scan.py::test_a_damaged_part_is_made_again": (),
    "test_scan.py::test_a_full_disk": (),
    "test_scan.py::test_killed_over_and_over": (),
    "test_scan.py::test_two_scans_at_once": (),
    "test_spellings.py::test_a_spelling_with_weights_in_int8_keeps_its_heads_and_scale": (),
    "test_stacks.py::test_each_layer_of_a_stack_is_numpys": (),
    "test_threads.py::test_threads_get_what_each_would_get_alone": ("tiny-gpt",),
    "tokens/test_encode.py::test_any_text": (),
    "view/test_figure.py::test_two_runs_give_the_same_bytes": (),
}
"""Of its cases those of these names are fast, as they stand in brackets; where there are none, the test is slow."""


def slow(names: Sequence[str]) -> Iterator[str]:
    """Of all tests, those that are slow.

    Args:
        names: As pytest calls them, "tests/test_x.py::test_y[case]", in order.
    """
    counted: dict[str, int] = {}
    for name in names:
        test, _, case = name.removeprefix("tests/").removesuffix("]").partition("[")
        at = counted[test] = counted.get(test, -1) + 1
        if at % EVERY.get(test, 1) or (test in KEPT and case not in KEPT[test]):
            yield name
