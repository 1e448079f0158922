"""Faults in the data that a step sees."""

from tests.mutation.mutation import Mutation

_PIPELINE = "glu_lab/data/pipeline.py"
_PACKING = "glu_lab/data/packing.py"
_SPANS = "glu_lab/data/span_corruption.py"
_T_PIPELINE = "tests/data/test_pipeline.py"
_T_PACKING = "tests/data/test_packing.py"
_T_SPANS = "tests/data/test_span_corruption.py"

ROWS = (
    Mutation(
        id="decoder-reads-its-targets",
        area="data",
        file=_PIPELINE,
        old='batch["decoder_tokens"][:, 1 : size.targets] = targets[:, :-1]',
        new='batch["decoder_tokens"][:, : size.targets] = targets',
        why="the decoder is shown the token that it has to predict",
        tests=(f"{_T_PIPELINE}::test_decoder_reads_the_targets_shifted_right",),
    ),
    Mutation(
        id="padded-targets-count",
        area="masks",
        file=_PIPELINE,
        old='batch["weights"][:, : size.targets] = 1',
        new='batch["weights"][:] = 1',
        why="the model is paid for predicting padding",
        tests=(f"{_T_PIPELINE}::test_a_longer_target_is_padded_with_weight_zero",),
    ),
    Mutation(
        id="every-process-reads-the-same",
        area="data",
        file=_PIPELINE,
        old="self._local_rows = range(process_index * local, (process_index + 1) * local)",
        new="self._local_rows = range(local)",
        why="eight processes train on an eighth of the data",
        tests=(f"{_T_PIPELINE}::test_the_global_batch_does_not_depend_on_the_number_of_processes",),
    ),
    Mutation(
        id="place-is-forgotten",
        area="data",
        file="glu_lab/data/iterator.py",
        old="        self._batches.set_state(dict(state[_PLACE]))\n",
        new="",
        why="a resumed run repeats its first batches",
        tests=(f"{_T_PIPELINE}::test_a_fresh_process_resumes_in_the_middle_of_a_packing_window",),
    ),
    Mutation(
        id="inputs-are-targets",
        area="data",
        file=_PACKING,
        old="return tokens[:-1], tokens[1:], starts[1:]",
        new="return tokens[1:], tokens[1:], starts[1:]",
        why="a language model copies its input, and its loss falls to zero",
        tests=(f"{_T_PACKING}::test_each_documents_pairs_start_with_eos_and_end_with_it",),
    ),
    Mutation(
        id="positions-run-on",
        area="positions",
        file=_PACKING,
        old="return np.cumsum(pieces, axis=1, dtype=np.int32), place - first",
        new="return np.cumsum(pieces, axis=1, dtype=np.int32), place.copy()",
        why="packed documents do not start at position 0",
        tests=(f"{_T_PACKING}::test_segments_and_positions_of_a_row",),
    ),
    Mutation(
        id="shards-share-their-order",
        area="data",
        file=_PACKING,
        old="key=[seed, (purpose << 32) | shard]",
        new="key=[seed, purpose << 32]",
        why="all shards shuffle and hide alike: correlated noise in every batch",
        tests=(f"{_T_PACKING}::test_epochs_shards_and_seeds_are_shuffled_differently",),
    ),
    Mutation(
        id="sentinels-count-from-one",
        area="data",
        file=_SPANS,
        old="sentinel = first_sentinel + 1 - np.cumsum(starts, axis=1)",
        new="sentinel = first_sentinel - np.cumsum(starts, axis=1)",
        why="spans are marked from <extra_id_1> on, unlike T5's",
        tests=(f"{_T_SPANS}::test_inputs_and_targets_are_those_of_a_token_by_token_loop",),
    ),
    Mutation(
        id="always-ends-in-noise",
        area="data",
        file=_SPANS,
        old="return self.raw - self.noise + 1",
        new="return self.raw - self.noise",
        why="the last token is never hidden behind the text",
        tests=(
            f"{_T_SPANS}::test_twenty_tokens_do_not_always_end_in_noise_nor_start_without",
            f"{_T_SPANS}::test_every_placement_is_equally_likely",
        ),
    ),
    Mutation(
        id="validation-too-large",
        area="data",
        file="glu_lab/data/splits.py",
        old="if taken + size / 2 > wanted:",
        new="if taken > wanted:",
        why="more text is held out than was asked for",
        tests=("tests/data/test_splits.py::test_the_nearest_number_of_documents_is_held_out",),
    ),
    Mutation(
        id="equal-texts-in-both-splits",
        area="data",
        file="glu_lab/data/splits.py",
        old="first[digest] = min(period, first.get(digest, period))",
        new="first[digest] = period",
        why="a text that comes in two periods is counted in the later one",
        tests=("tests/data/test_splits.py",),
    ),
)
