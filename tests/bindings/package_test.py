# SPDX-License-Identifier: Apache-2.0
"""Checks of the Python package with Python alone; run by python_package.sh, which numbers them."""

import array
import gc
import math
import random
import sys
import threading
import traceback

import libattn
from libattn import batch, memory, plan

rng = random.Random(7)
CHECKS = []
DECODER = dict(
    role="decoder",
    mask="causal",
    dtype="float32",
    num_heads=4,
    num_kv_heads=2,
    head_size=32,
    scale=0.125,
    block_size=16,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_model_len=64,
)


def check(function):
    CHECKS.append(function)
    return function


def tensor(*shape):
    n = math.prod(shape)
    return memoryview(array.array("f", (rng.gauss(0, 1) for _ in range(n)))).cast("B").cast("f", list(shape))


def refused(kind, param, function, *arguments, **keywords):
    """The exception of a call that must fail and name a parameter."""
    try:
        function(*arguments, **keywords)
    except kind as error:
        assert error.param == param, f"named {error.param!r}, wanted {param!r}: {error.text}"
        assert error.text and error.code < 0 and error.name.startswith("ATTN_E_")
        return error
    raise AssertionError("nothing was refused")


def expected(query, keys, values, at, length, head):
    """Row `at` of one query head over the first keys of a request, in double."""
    q, kv = query[at][head], head // 2
    scores = [0.125 * sum(a * b for a, b in zip(q, keys[t][kv])) for t in range(length)]
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    total = sum(weights)
    return [
        sum(w * values[t][kv][d] for t, w in enumerate(weights)) / total for d in range(32)
    ], top + math.log(total)


@check
def two_steps_of_two_requests_agree_with_a_sum_in_double():
    with libattn.Context() as context:
        group = context.open_group(DECODER, features=["lse"])
        layer = group.create_layer("model.layers.0.attn").bind(group.new_cache(8, framework="bytes"))
        keys, values, table, done = [[], []], [[], []], [[5, 1], [2, 7]], [0, 0]
        for lengths in ((3, 18), (1, 1)):
            n = sum(lengths)
            q, k, v = tensor(n, 4, 32), tensor(n, 2, 32), tensor(n, 2, 32)
            rows = [x.tolist() for x in (q, k, v)]
            start = 0
            for r in (0, 1):
                keys[r] += rows[1][start : start + lengths[r]]
                values[r] += rows[2][start : start + lengths[r]]
                done[r], start = done[r] + lengths[r], start + lengths[r]
            batch = group.new_batch(query_lens=lengths, seq_lens=array.array("i", done), block_table=table)
            group.build_metadata(batch)
            layer.update_kv_cache(k, v)
            out, lse = (x.tolist() for x in layer.forward(q, lse=True))
            row = 0
            for r in (0, 1):
                for i in range(lengths[r]):
                    for head in range(4):
                        want, log = expected(
                            rows[0], keys[r], values[r], row, done[r] - lengths[r] + i + 1, head
                        )
                        worst = max(abs(a - b) for a, b in zip(want, out[row][head]))
                        assert worst < 1e-5, f"request {r} token {i} head {head}: {worst}"
                        assert abs(log - lse[head][row]) < 1e-5
                    row += 1


@check
def reasons_are_objects():
    with libattn.Context() as context:
        selection = context.select(DECODER, device="cpu")
        assert selection and selection.backend == "CPU_ATTN" and selection.rule == "priority"
        chosen = [c for c in selection.candidates if c.is_chosen]
        assert len(chosen) == 1 and chosen[0].is_valid and not chosen[0].reasons
        wrong = libattn.Problem(DECODER, kv_cache_dtype="nvfp4", head_size=40, block_size=16)
        nobody = context.select(wrong, backend="CPU_ATTN")
        reasons = nobody.candidates[0].reasons
        assert not nobody and reasons and all(r.text and r.name for r in reasons), nobody
        error = refused(libattn.UnsupportedError, "backend", context.open_group, wrong, backend="CPU_ATTN")
        assert error.selection is not None and error.selection.candidates[0].reasons == reasons
        backend = context.backend("cpu_attn")
        assert (
            backend.name == "CPU_ATTN"
            and backend.supports_feature("sink")
            and backend.supports("head_size", 64)
        )
        assert backend.validate(DECODER) == () and backend.validate(wrong) == reasons
        refused(libattn.NotFoundError, "backend", context.backend, "CPU_ATN")


@check
def problems_are_text_and_back():
    problem = libattn.Problem(DECODER, features=["sink", "lse"], logits_soft_cap=30.5)
    assert libattn.Problem(str(problem)) == problem and hash(libattn.Problem(str(problem))) == hash(problem)
    assert problem.features == {"sink", "lse"} and problem.dtype == "float32" and problem.scale == 0.125
    assert problem.sliding_window is None and problem.replace(sliding_window=8).sliding_window == 8
    assert problem.replace(features=libattn.Feature.SINK).features == {"sink"}
    refused(libattn.ParseError, "hed_size", libattn.Problem, DECODER, hed_size=3)
    refused(libattn.ParseError, "dtype", libattn.Problem, DECODER, dtype="float31")
    refused(libattn.InvalidError, "num_heads", libattn.Problem, DECODER, num_heads=object())
    refused(libattn.InvalidError, "num_kv_heads", libattn.Problem, DECODER, num_kv_heads=3)
    try:
        problem.scale = 1.0
    except AttributeError:
        return
    raise AssertionError("a problem changed")


@check
def bad_arguments_are_refused_by_name():
    with libattn.Context() as context:
        group = context.open_group(DECODER)
        layer = group.create_layer("model.layers.0.attn").bind(group.new_cache(8, framework="bytes"))
        q, kv = tensor(1, 4, 32), tensor(1, 2, 32)
        refused(libattn.StateError, "space", layer.forward, q)
        refused(libattn.InvalidError, "slot_mapping", layer.update_kv_cache, kv, kv)
        refused(libattn.InvalidError, "seq_lens", group.new_batch, query_lens=[1], seq_lens=[1, 2])
        refused(libattn.InvalidError, "query_start_loc", group.new_batch, seq_lens=[1])
        refused(libattn.InvalidError, "seq_lens", group.new_batch, query_lens=[1], seq_lens=[1.5])
        refused(libattn.InvalidError, "block_table", group.new_batch, query_lens=[1], block_table=[[2**40]])
        group.build_metadata(group.new_batch(query_lens=[1], block_table=[[1]]))
        refused(libattn.InvalidError, "query", layer.forward, "text")
        refused(libattn.InvalidError, "query", layer.forward, tensor(1, 4, 31), output=tensor(1, 4, 32))
        refused(libattn.InvalidError, "output", layer.forward, q, output=tensor(1, 4, 32).toreadonly())
        refused(libattn.InvalidError, "value", layer.update_kv_cache, kv, 3)
        refused(libattn.Error, "name", group.create_layer, "model.layers.0.attn")
        try:
            layer.forward(q, sink=q)
        except TypeError as error:
            assert "sinks" in str(error)
        else:
            raise AssertionError("an unknown argument was ignored")
        assert layer.forward(q).shape == (1, 4, 32)  # and after all that it works


@check
def closing_in_any_order_is_safe():
    context = libattn.Context()
    group = context.open_group(DECODER)
    layer, other = group.create_layer("a.0"), group.create_layer("a.1")
    other.close()
    other.close()
    group.create_layer("a.1")  # the name is free again, and the layer that nobody keeps is collected
    gc.collect()
    context.close()
    context.close()
    refused(
        libattn.StateError, "layer", layer.forward, tensor(1, 4, 32), profile=True, output=tensor(1, 4, 32)
    )
    refused(libattn.StateError, "group", group.kv_cache_shape, 3)
    refused(libattn.InvalidError, "context", context.config)
    group.close()
    layer.close()
    del context, group, layer, other
    gc.collect()


@check
def one_thread_at_a_time():
    with libattn.Context() as context:
        group = context.open_group(DECODER)
        layer = group.create_layer("a.0").bind(group.new_cache(8, framework="bytes"))
        group.build_metadata(group.new_batch(query_lens=[1], block_table=[[1]]))
        q, failures = tensor(1, 4, 32), []

        def other():
            try:
                layer.forward(q)
            except libattn.StateError as error:
                failures.append(error)

        with group._calls:  # as if this thread were in a call
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        assert [error.param for error in failures] == ["group"]
        layer.forward(q)


@check
def batches_keep_the_lists_that_they_point_to():
    """On another device too, where the tensors are copies and the host's lists would have no other owner."""
    made = []

    def copied(host, dtype, device):
        values = array.array("q" if dtype == "int64" else "i", bytes(host.owner))
        made.append(values)
        return memoryview(values).cast("B").cast(values.typecode, list(host.shape))

    class Elsewhere:
        is_cpu, type, index = False, 2, 0

    class Group:
        device, block_size = Elsewhere(), 16

    before, batch.host_tensor = batch.host_tensor, copied
    try:
        of = batch.Batch(
            Group(), query_lens=[1, 1], seq_lens=[1, 1], block_table=[[0], [1]], slot_mapping=[0, 1],
            encoder_seq_lens=[5, 7], causal=[True, False], rswa_prefix_lens=[2, 3], mm_prefix_ranges=[[(0, 1)], [(2, 3)]],
        )
    finally:
        batch.host_tensor = before
    assert len(made) == 8, len(made)
    kept = [k.buffer_info()[0] for k in of._keep if isinstance(k, array.array)]
    kept += [k.address for k in (*of._keep, of.query_start_loc, of.seq_lens) if isinstance(k, memory.HostInts)]
    s = of._struct
    for name in ("query_start_loc", "seq_lens", "encoder_seq_lens", "causal", "rswa_prefix_lens", "mm_prefix_ranges"):
        assert getattr(s, name + "_host") in kept, name


@check
def a_group_of_two_says_who_does_what():
    with libattn.Context("[select decoder]\nprefill_priority = REFERENCE\n") as context:
        named = context.select_phase(DECODER, "prefill")
        assert named is not None and named.backend == "REFERENCE" and named.rule == "priority"
        assert context.select_phase(DECODER, "decode") is None
        refused(libattn.InvalidError, "phase", context.select_phase, DECODER, "both")
        group = context.open_group(DECODER)
        assert (group.backend.name, group.prefill_backend.name) == ("CPU_ATTN", "REFERENCE")
        assert group.served_by == "decode CPU_ATTN, prefill REFERENCE" and group.served_by in repr(group)
        assert group.selection.backend == "CPU_ATTN" and not group.selection.warning
        layer = group.create_layer("a.0").bind(group.new_cache(8, framework="bytes"))
        for lengths, name in (([3, 1], "REFERENCE"), ([1, 1], "CPU_ATTN")):
            batch = group.new_batch(query_lens=lengths, seq_lens=[4, 2], block_table=[[1], [2]])
            assert group.backend_of(batch).name == name
            group.build_metadata(batch)
        alone = context.open_group(DECODER, backend="CPU_ATTN")
        assert alone.served_by == "CPU_ATTN" and alone.prefill_backend.name == "CPU_ATTN"
        del layer


@check
def the_log_and_the_configuration_come_through():
    lines = []
    with libattn.Context(
        "[attn]\nplugins = reference, nosuch\n", log=lambda *line: lines.append(line)
    ) as context:
        assert [p.name for p in context.plugins()] == ["reference", "nosuch"]
        assert [b.name for b in context.backends()] == ["REFERENCE"]
        absent = context.plugins()[1]
        assert not absent.is_loaded and "nosuch.so" in absent.reason
        value = [v for v in context.config() if v.key == "plugins"][0]
        assert (value.source, value.line, value.value) == ("api", 2, "reference, nosuch")
    assert any(level == "warn" and "nosuch" in text for level, text in lines), lines
    refused(libattn.ParseError, "plugin", libattn.Context, "[attn]\nplugin = x\n")


@check
def the_check_hook_sees_a_bad_call():
    with libattn.Context("[hook check]\nlevel = all\n") as context:
        group = context.open_group(DECODER)
        layer = group.create_layer("a.0").bind(group.new_cache(8, framework="bytes"))
        group.build_metadata(group.new_batch(query_lens=[1], block_table=[[1]]))
        q = tensor(1, 4, 32)
        q[0, 1, 2] = math.nan
        try:
            layer.forward(q)
        except libattn.Error as error:
            assert "query" in error.text or error.param == "query", error
        else:
            raise AssertionError("a NaN passed")


@check
def lengths_of_keys_and_lengths_on_the_device():
    encoder = {k: v for k, v in DECODER.items() if k != "block_size"} | {"role": "encoder_only"}
    with libattn.Context() as context:
        group = context.open_group(encoder, features=["lse", "key_lengths"], max_num_batched_keys=32)
        layer = group.create_layer("keys.attn")
        q, k, v = tensor(3, 4, 32), tensor(9, 2, 32), tensor(9, 2, 32)
        rows = [x.tolist() for x in (q, k, v)]
        # two keys more than tokens; none at all; a row of nobody between
        group.build_metadata(group.new_batch(query_lens=[2, 1], seq_lens=[4, 0], key_start_loc=[0, 5, 9]))
        out, lse = tensor(3, 4, 32), tensor(4, 3)
        layer.forward(q, k, v, output=out, lse=lse)
        want, want_lse = expected(rows[0], rows[1], rows[2], 1, 4, 3)
        assert max(abs(a - b) for a, b in zip(out.tolist()[1][3], want)) < 2e-5
        assert abs(lse.tolist()[3][1] - want_lse) < 2e-5
        assert out.tolist()[2] == [[0.0] * 32] * 4 and lse.tolist()[0][2] == -math.inf
        refused(libattn.InvalidError, "key_start_loc", group.new_batch, query_lens=[2, 1], key_start_loc=[0, 5])

        group = context.open_group(DECODER, features=["device_lengths"])
        layer = group.create_layer("device.attn").bind(group.new_cache(8, framework="bytes"))
        q, k, v = tensor(20, 4, 32), tensor(20, 2, 32), tensor(20, 2, 32)
        starts, lengths = array.array("i", [0, 20]), array.array("i", [20])
        batch = dict(query_start_loc_device=starts, seq_lens_device=lengths, block_table=[[5, 1, 2]])
        group.build_metadata(group.new_batch(query_lens=[20], seq_lens=[40], slot_mapping=[*range(80, 96), *range(16, 20)], **batch))
        layer.update_kv_cache(k, v)
        out, rows = tensor(20, 4, 32), [x.tolist() for x in (q, k, v)]
        for length in (20, 7, 13):  # one build
            starts[1] = lengths[0] = length
            layer.forward(q, output=out)
            want, _ = expected(rows[0], rows[1], rows[2], length - 1, length, 2)
            assert max(abs(a - b) for a, b in zip(out.tolist()[length - 1][2], want)) < 2e-5
        lengths[0] = 41
        refused(libattn.InvalidError, "seq_lens", layer.forward, q, output=out)


@check
def outputs_of_four_bits_and_a_cache_that_forward_writes():
    def step(features, out, **keywords):
        with libattn.Context() as context:
            problem = dict(DECODER, features=features, out_dtype=out)
            with context.open_group(**problem, device="cpu", backend="REFERENCE") as group:
                layer = group.create_layer("layers.0")
                layer.bind(group.new_cache(num_blocks=3))
                group.build_metadata(group.new_batch(query_lens=[3], seq_lens=[3], block_table=[[1]]))
                if "slot_mapping" not in keywords:
                    layer.update_kv_cache(key, value)
                return layer.forward(query, key, value, **keywords)

    query, key, value = tensor(3, 4, 32), tensor(3, 2, 32), tensor(3, 2, 32)
    slots = memoryview(array.array("q", [16, 17, 18]))
    plain = step([], None).tolist()
    assert step(["write_in_forward"], None, slot_mapping=slots).tolist() == plain
    one = memoryview(array.array("f", [0.01]))
    scales = memoryview(bytearray(3 * 8)).cast("B", [3, 8])
    packed = step(["out_nvfp4"], "uint8", output_scale=one, output_block_scale=scales).tolist()
    values = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    for t in range(3):
        for h in range(4):
            for d in range(32):
                code = packed[t][h][d // 2] >> d % 2 * 4 & 15
                bits = scales.tolist()[t][(h * 32 + d) // 16]
                assert 8 <= bits < 127, bits  # a normal e4m3 number
                unit = (1 + bits % 8 / 8) * 2.0 ** (bits // 8 - 7) * one[0]
                got = values[code % 8] * unit * (-1 if code > 7 else 1)
                assert abs(got - plain[t][h][d]) <= unit * 1.01, (t, h, d, got, plain[t][h][d])
    refused(libattn.InvalidError, "slot_mapping", step, [], None, slot_mapping=slots)
    refused(libattn.InvalidError, "output_block_scale", step, ["out_nvfp4"], "uint8", output_scale=one)


@check
def planning_over_plain_integers():
    assert list(plan.slot_mapping([0, 2, 3], [18, 5], [[4, 9], [1]], block_size=16)) == [
        9 * 16,
        9 * 16 + 1,
        20,
    ]
    assert plan.split([0, 1, 2, 7], 1) == plan.Split(2, 1, 2, 5)
    order, moved = plan.reorder([0, 8, 8], [9, 1, 5], 1)
    assert (list(order), moved) == ([1, 2, 0], True)
    assert list(plan.expand_blocks([3, 1], 32, 16)) == [6, 7, 2, 3]
    assert plan.common_prefix([[1, 2, 3], [1, 2, 4]], [48, 48], 16) == 32
    assert plan.layer_index("model.layers.31.attn") == 31
    spec = plan.kv_spec(DECODER, 16)
    assert (
        spec.page_bytes == 2 * 16 * 2 * 32 * 4
        and spec.kind_name == "full_attention"
        and spec.max_blocks(64) == 4
    )
    assert plan.resolve_kv_cache_dtype("model.layers.3.attn", "fp8_e4m3", skip=["3"]) == "auto"
    refused(libattn.InvalidError, "block_table", plan.slot_mapping, [0, 1, 2], [1, 1], [[1]], block_size=16)
    refused(libattn.InvalidError, "is_prefilling", plan.split, [0, 1], 1, is_prefilling=[1, 0])


def main():
    for number, function in enumerate(CHECKS):
        name = function.__name__.replace("_", " ")
        try:
            function()
            print(f"ok - {name}")
        except Exception:
            print(f"not ok - {name}")
            print("".join(f"#{number} {line}\n" for line in traceback.format_exc().splitlines()), end="")
        sys.stdout.flush()
    print("done")


if __name__ == "__main__":
    main()
