/* SPDX-License-Identifier: Apache-2.0 */
/* The flash kernels against an oracle in double: masks, lengths around every boundary, head sizes, cache
 * layouts and types, splits. The cache is full of NaN except where a token was written, and outputs lie
 * between canaries. Kernels are called below the plugin ABI, with the planner's own work lists.
 * FLASH_TEST_ONLY=text runs a part. */
#include "kernels/cuda/dense/flash_launch.h"
#include "flash_cases.h"
#include "flash_oracle.cuh"
#include "kernels/cuda/dense/flash_plan.h"
#include "part.h"
#include "../tap.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

#define CK(x)                                                                                                \
    do {                                                                                                     \
        cudaError_t e_ = (cudaError_t)(x);                                                                   \
        if (e_ != cudaSuccess) bail_out("%s, line %d: %s", #x, __LINE__, cudaGetErrorString(e_));            \
    } while (0)

template <class T>
static T *device_copy(const std::vector<T> &v) {
    T *p;
    CK(cudaMalloc(&p, v.size() * sizeof(T) + 16));
    CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

static uint16_t to16(float x, int bf16) {
    return bf16 ? __bfloat16_as_ushort(__float2bfloat16(x)) : __half_as_ushort(__float2half(x));
}
static double from16(uint16_t x, int bf16) {
    return bf16 ? (double)__bfloat162float(__ushort_as_bfloat16(x))
                : (double)__half2float(__ushort_as_half(x));
}

static flash_device device;
static flash_runtime runtime;
static std::mt19937_64 rng;

static std::vector<uint16_t> random16(size_t n, int bf16, bool extreme) {
    std::normal_distribution<float> normal;
    std::vector<uint16_t> v(n);
    for (auto &x : v) {
        float f = normal(rng);
        if (extreme && rng() % 64 == 0) f *= 24.f;
        x = to16(f, bf16);
    }
    return v;
}

/* Scores at a level far from zero: of all keys, of all with the first one ahead, of a request's last or first
 * half; other channels add a score of size 1. ks: scales of an e4m3 cache, whose keys end at 448. */
static void set_far(const test_case &c, const std::vector<int> &q_start, const std::vector<int> &k_start,
                    const std::vector<float> &ks, int bf16, std::vector<uint16_t> &q,
                    std::vector<uint16_t> &k) {
    const bool bytes = c.kv_dtype == FLASH_E4M3;
    const float top = c.e4m3_query ? 128.f : bytes || !bf16 ? 32768.f : c.level > 1e30 ? 1e10f : 64.f;
    for (size_t i = 0; i < c.lens.size(); i++) {
        for (int t = q_start[i]; t < q_start[i + 1]; t++)
            for (int h = 0; h < c.hq; h++) {
                uint16_t *x = &q[((size_t)t * c.hq + h) * c.d];
                const bool is_far = c.far != FAR_ONE || t % 75 == 37;
                for (int d = 1; d < c.d; d++) /* portable kernels have scores in float32 */
                    x[d] = to16(bytes || c.force_sm80 ? 0.f
                                                      : (float)(from16(x[d], bf16) / (c.scale * sqrt(c.d))),
                                bf16);
                x[0] = to16(is_far ? t % 2 ? top : -top : 0.f, bf16);
                if (c.far == FAR_NAN && t % 50 == 7 && h == 1) x[c.d / 2] = 0x7fff;
            }
        const int keys = c.lens[i].second;
        for (int j = 0; j < keys; j++)
            for (int h = 0; h < c.hkv; h++) {
                double x = bytes ? 256. * ks[c.per_head ? h : 0] : c.level / (top * c.scale);
                if (c.far == FAR_AHEAD && j == 0) x /= 2;
                if ((c.far == FAR_LAST && j < keys / 2) || (c.far == FAR_FIRST && j >= keys / 2)) x = 0;
                k[((size_t)(k_start[i] + j) * c.hkv + h) * c.d] = to16((float)x, bf16);
            }
    }
}

static void run_case(const test_case &c) {
    const int bf16 = c.q_dtype == FLASH_BF16, kv = c.kv_dtype ? c.kv_dtype : c.q_dtype,
              e4m3 = kv == FLASH_E4M3;
    const int dv = c.dv ? c.dv : c.d, n = (int)c.lens.size(), group = c.hq / c.hkv, eb = e4m3 ? 1 : 2;
    std::vector<int> q_start(n + 1, 0), k_start(n + 1, 0), seq_lens(n), causal(n);
    int max_kv = 1, max_pages = 1;
    for (int i = 0; i < n; i++) {
        q_start[i + 1] = q_start[i] + c.lens[i].first;
        k_start[i + 1] = k_start[i] + c.lens[i].second;
        seq_lens[i] = c.lens[i].second;
        causal[i] = c.causal == 2 ? i & 1 : c.causal;
        max_kv = std::max(max_kv, seq_lens[i]);
    }
    const int T = q_start[n], keys = k_start[n];
    max_pages = (max_kv + c.page - 1) / c.page + 1;
    auto hq = random16((size_t)T * c.hq * c.d, bf16, c.extreme),
         hk = random16((size_t)keys * c.hkv * c.d, bf16, c.extreme);
    auto hv = random16((size_t)keys * c.hkv * dv, bf16, false);
    std::vector<float> sinks(c.hq), alibi(c.hq), ks(c.hkv), vs(c.hkv);
    std::normal_distribution<float> normal;
    for (int h = 0; h < c.hq; h++)
        sinks[h] = 2.f * normal(rng), alibi[h] = exp2f(-8.f * (h + 1) / c.hq);
    for (int h = 0; h < c.hkv; h++)
        ks[h] = 0.01f + 0.02f * (rng() % 5), vs[h] = h % 2 ? 0.25f : 0.03f; /* exact and inexact scales */

    const double scale = c.scale > 0 ? c.scale : 1.0 / sqrt((double)c.d);
    if (c.far) set_far(c, q_start, k_start, ks, bf16, hq, hk);

    /* random pages; entries of the table past the end are garbage */
    std::vector<int> perm, table((size_t)n * max_pages, 0x7fffffff);
    int used = 0;
    for (int i = 0; i < n; i++)
        used += (seq_lens[i] + c.page - 1) / c.page;
    int pages = used + 3;
    for (int i = 0; i < pages; i++)
        perm.push_back(i);
    std::shuffle(perm.begin(), perm.end(), rng);
    std::vector<int64_t> slots(keys);
    int next = 0;
    for (int i = 0; i < n; i++)
        for (int t = 0; t < seq_lens[i]; t++) {
            if (t % c.page == 0) table[(size_t)i * max_pages + t / c.page] = perm[next++];
            slots[k_start[i] + t] = (int64_t)table[(size_t)i * max_pages + t / c.page] * c.page + t % c.page;
        }

    /* what e4m3 holds, times the scale, is a 16-bit number too: the oracle sees the same query */
    std::vector<uint8_t> q8;
    const float q_scale = 0.5f;
    for (size_t i = 0; c.e4m3_query && i < hq.size(); i++) {
        __nv_fp8_e4m3 x((float)from16(hq[i], bf16) / q_scale);
        q8.push_back(x.__x);
        hq[i] = to16((float)x * q_scale, bf16);
    }

    flash_params p = {};
    uint16_t *dq = device_copy(hq), *dk = device_copy(hk), *dvv = device_copy(hv);
    uint8_t *dq8 = c.e4m3_query ? device_copy(q8) : nullptr;
    p.q = c.e4m3_query ? (const void *)dq8 : dq;
    p.q_scale = c.e4m3_query ? device_copy(std::vector<float>{q_scale}) : nullptr;
    p.q_start = device_copy(q_start);
    const int *d_kstart = device_copy(k_start), *d_causal = device_copy(causal);
    p.q_dtype = c.e4m3_query ? (int)FLASH_E4M3 : c.q_dtype, p.out_dtype = c.q_dtype, p.kv_dtype = kv;
    p.num_seqs = n, p.num_q_heads = c.hq, p.num_kv_heads = c.hkv, p.group = group;
    p.head_size = c.d, p.head_size_v = dv;
    p.q_token = (int64_t)c.hq * c.d, p.q_head = c.d;
    p.window_left = c.window ? c.window - 1 : -1;
    p.window_right = c.window ? c.window - 1 : -1;
    p.chunk = c.chunk, p.lookback = c.lookback;
    p.scale = (float)scale, p.soft_cap = (float)c.cap;
    p.sinks = c.sinks ? device_copy(sinks) : nullptr;
    p.alibi = c.alibi ? device_copy(alibi) : nullptr;
    p.k_scale = e4m3 ? device_copy(ks) : nullptr;
    p.v_scale = e4m3 ? device_copy(vs) : nullptr;
    p.scale_stride = c.per_head;
    p.q_rows = T, p.kv_rows = keys, p.num_pages = pages;
    const int64_t pad = 8, canary = 64;
    p.out_head = dv, p.out_token = (int64_t)c.hq * dv + pad;
    std::vector<uint16_t> out((size_t)T * p.out_token + 2 * canary, 0xffff);
    uint16_t *d_out = device_copy(out);
    p.out = d_out + canary;
    std::vector<float> lse((size_t)T * c.hq, -12345.f);
    float *d_lse = device_copy(lse);
    p.lse = d_lse, p.lse_head = T, p.lse_token = 1;

    uint8_t *cache = nullptr;
    int *d_table = nullptr;
    if (c.layout == CONTIGUOUS) {
        p.k = dk, p.v = dvv, p.k_start = d_kstart;
        p.k_token = (int64_t)c.hkv * c.d, p.k_head = c.d, p.v_token = (int64_t)c.hkv * dv, p.v_head = dv;
    } else {
        int64_t content = c.layout == SEPARATE ? c.d : c.d + dv,
                vcontent = c.layout == SEPARATE ? dv : content;
        size_t kbytes = (size_t)pages * c.page * c.hkv * content * eb,
               vbytes = (size_t)pages * c.page * c.hkv * vcontent * eb;
        CK(cudaMalloc(&cache, kbytes + vbytes + 256));
        CK(cudaMemset(cache, 0xff, kbytes + vbytes)); /* NaN in every format */
        p.k = cache;
        p.v = c.layout == SEPARATE ? cache + ((kbytes + 127) / 128 * 128) : cache + c.d * eb;
        bool hnd = c.layout == HND;
        p.k_page = (int64_t)c.page * c.hkv * content, p.v_page = (int64_t)c.page * c.hkv * vcontent;
        p.k_token = hnd ? content : c.hkv * content, p.v_token = hnd ? vcontent : c.hkv * vcontent;
        p.k_head = hnd ? c.page * content : content, p.v_head = hnd ? c.page * vcontent : vcontent;
        d_table = device_copy(table), p.page_size = c.page;
        flash_write_params w = {};
        w.key = dk, w.value = dvv, w.k_cache = (void *)p.k, w.v_cache = (void *)p.v;
        w.slots = device_copy(slots), w.k_scale = p.k_scale, w.v_scale = p.v_scale,
        w.scale_stride = c.per_head;
        w.num_slots_total = (int64_t)pages * c.page;
        w.key_token = (int64_t)c.hkv * c.d, w.key_head = c.d, w.value_token = (int64_t)c.hkv * dv,
        w.value_head = dv;
        w.k_page = p.k_page, w.k_token = p.k_token, w.k_head = p.k_head;
        w.v_page = p.v_page, w.v_token = p.v_token, w.v_head = p.v_head;
        w.num_tokens = keys, w.num_kv_heads = c.hkv, w.head_size = c.d, w.head_size_v = dv,
        w.page_size = c.page;
        w.dtype = c.q_dtype, w.kv_dtype = kv;
        CK(flash_write_cache(&w, 0));
        CK(cudaFree((void *)w.slots));
    }

    flash_shape shape = {p.q_dtype,
                         kv,
                         c.hq,
                         c.hkv,
                         c.d,
                         dv,
                         c.layout == CONTIGUOUS ? 0 : c.page,
                         c.cap > 0 || c.alibi,
                         c.decode_tokens,
                         c.force_sm80,
                         c.window ? c.causal == 1 ? c.window : 2 * c.window - 1 : 0};
    flash_decode_config dc[FLASH_MODES];
    flash_prefill_config pc;
    if (flash_choose_decode(&shape, &device, &dc[0]) || flash_choose_prefill(&shape, &device, &pc)) {
        ok(0, "%s: a kernel is chosen", c.name.c_str());
        return;
    }
    int longest = 0;
    for (const auto &x : c.lens)
        longest = std::max(longest, x.first);
    flash_prefill_config pairs = pc;
    if (c.packed && flash_pack_prefill(&shape, &pairs, longest, &pc)) {
        ok(0, "%s: heads have room in a tile", c.name.c_str());
        return;
    }
    for (int i = 1; i < FLASH_MODES; i++) {
        dc[i] = dc[0];
        flash_resize_decode(&shape, &device, i, &dc[i]);
    }
    flash_plan_input in = {};
    in.q_start = q_start.data(), in.seq_lens = seq_lens.data();
    in.k_start = c.layout == CONTIGUOUS ? k_start.data() : nullptr;
    in.causal_per_seq = c.causal == 2 ? causal.data() : nullptr;
    in.num_seqs = n, in.num_kv_heads = c.hkv, in.group = group;
    in.decode_tokens = c.decode_tokens, in.decode_rows = dc[0].row_tiles * 8;
    for (int i = 0; i < FLASH_MODES; i++)
        in.modes[i] = {device.num_sms * dc[i].ctas_per_sm, dc[i].ctas_per_sm, dc[i].warps * 16};
    in.block_rows = pc.block_rows, in.packed = pc.packed, in.causal = c.causal;
    in.window_left = p.window_left, in.window_right = p.window_right;
    in.chunk = p.chunk, in.lookback = p.lookback, in.num_splits = c.splits;
    in.max_cluster = device.major == 9 && !c.force_sm80 ? 8 : 0;
    in.captured =
        c.captured ? n * c.hkv * ((c.decode_tokens * group + in.decode_rows - 1) / in.decode_rows) : 0;
    flash_plan_limits lim = {};
    lim.max_seqs = n, lim.max_tokens = T;
    flash_plan_capacity(&lim, &in);
    std::vector<flash_plan_request> requests(lim.max_seqs);
    std::vector<flash_plan_tile> tile_keys(lim.max_tiles + 1);
    std::vector<flash_item> items(lim.max_items + 1);
    std::vector<flash_tile> tiles(lim.max_tiles + 1);
    flash_plan plan = {requests.data(), tile_keys.data(), items.data(), tiles.data()};
    if (flash_plan_build(&in, &lim, &plan)) {
        ok(0, "%s: the plan fits its limits", c.name.c_str());
        return;
    }
    plan.counts.block_table = d_table, plan.counts.block_table_stride = max_pages;
    p.counts = device_copy(std::vector<flash_counts>{plan.counts});
    p.items = device_copy(items), p.tiles = device_copy(tiles);
    p.max_rows = std::max(1, plan.decode_tokens) * c.hq, p.keys_per_tile = plan.keys_per_tile;
    p.ticket_stride = p.max_rows; /* more than CTAs */
    size_t part = (size_t)std::max(1, plan.counts.num_slots) * p.max_rows;
    p.tickets = device_copy(std::vector<int32_t>(part, 0));
    CK(cudaMalloc(&p.part_out, part * dv * 4));
    CK(cudaMalloc(&p.part_lse, part * 4));
    CK(cudaMemset(p.part_out, 0xff, part * dv * 4));
    CK(cudaMemset(p.part_lse, 0xff, part * 4));
    auto decode = flash_all_kernels.decode[kv - FLASH_F16][dc[0].class_index];
    CK(decode(nullptr, &dc[FLASH_LARGE_CTAS], 0, 0)); /* allows the others */
    dc[plan.mode].cluster = plan.cluster;
    if (plan.counts.num_items) /* twice: tickets are used up and returned */
        for (int i = 0; i < 2; i++)
            CK(decode(&p, &dc[plan.mode], plan.counts.num_items, 0));
    CK(flash_run_prefill(nullptr, &shape, &pc, 0, &runtime, 0));
    /* tiles dealt out; then everything anew, tiles drawn by a counter that returns to 0 */
    CK(flash_run_prefill(&p, &shape, &pc, plan.counts.num_tiles, &runtime, 0));
    std::vector<uint16_t> dealt(out.size());
    CK(cudaMemcpy(dealt.data(), d_out, dealt.size() * 2, cudaMemcpyDeviceToHost));
    CK(cudaMemset(d_out, 0xff, out.size() * 2));
    if (plan.counts.num_items) CK(decode(&p, &dc[plan.mode], plan.counts.num_items, 0));
    flash_prefill_more more = {};
    more.ticket = device_copy(std::vector<int32_t>{0});
    for (int i = 0; i < 2; i++)
        CK(flash_run_prefill_more(&p, &more, &shape, &pc, plan.counts.num_tiles, &runtime, 0));
    int32_t ticket = -1;
    CK(cudaMemcpy(&ticket, more.ticket, sizeof ticket, cudaMemcpyDeviceToHost));
    CK(cudaFree(more.ticket));

    oracle_args a = {};
    a.q = dq, a.k = dk, a.v = dvv, a.q_start = p.q_start, a.k_start = d_kstart, a.causal = d_causal;
    a.alibi = p.alibi, a.sinks = p.sinks;
    a.num_seqs = n, a.hq = c.hq, a.hkv = c.hkv, a.d = c.d, a.dv = dv, a.max_kv = max_kv, a.bf16 = bf16,
    a.e4m3 = e4m3;
    a.per_head = c.per_head, a.window_left = p.window_left, a.window_right = p.window_right;
    a.chunk = c.chunk, a.lookback = c.lookback;
    a.scale = (float)scale, a.cap = c.cap, a.k_scale = p.k_scale, a.v_scale = p.v_scale;
    CK(cudaMalloc(&a.scores, (size_t)1024 * max_kv * 8));
    CK(cudaMalloc(&a.out, (size_t)T * c.hq * dv * 8 + 8));
    CK(cudaMalloc(&a.lse, (size_t)T * c.hq * 8 + 8));
    if (T > 0) oracle_kernel<<<1024, 128>>>(a);
    CK(cudaDeviceSynchronize());
    std::vector<double> ref((size_t)T * c.hq * dv), ref_lse((size_t)T * c.hq);
    CK(cudaMemcpy(ref.data(), a.out, ref.size() * 8, cudaMemcpyDeviceToHost));
    CK(cudaMemcpy(ref_lse.data(), a.lse, ref_lse.size() * 8, cudaMemcpyDeviceToHost));
    CK(cudaMemcpy(out.data(), d_out, out.size() * 2, cudaMemcpyDeviceToHost));
    CK(cudaMemcpy(lse.data(), d_lse, lse.size() * 4, cudaMemcpyDeviceToHost));

    double num = 0, den = 0, worst_row = 0, worst_lse = 0, rms = 0;
    int bad_canary = 0, worst_at = -1;
    for (double r : ref)
        rms += r * r;
    rms = sqrt(rms / std::max<size_t>(1, ref.size()));
    for (int64_t i = 0; i < canary; i++)
        bad_canary += out[i] != 0xffff || out[out.size() - 1 - i] != 0xffff;
    for (int t = 0; t < T; t++) {
        for (int i = 0; i < pad; i++)
            bad_canary += out[canary + (t + 1) * p.out_token - 1 - i] != 0xffff;
        for (int h = 0; h < c.hq; h++) {
            double rn = 0, rd = 0;
            const bool is_nan = c.far == FAR_NAN && t % 50 == 7 && h == 1;
            for (int d = 0; d < dv; d++) {
                double x = from16(out[canary + t * p.out_token + h * dv + d], bf16),
                       y = ref[((size_t)t * c.hq + h) * dv + d];
                if (is_nan) x = x == x ? 1e30 : y = 0;
                rn += (x - y) * (x - y);
                rd += y * y;
                if (!(x == x)) rn = 1e30;
            }
            num += rn, den += rd;
            double rel = sqrt(rn / std::max(rd, 0.01 * rms * rms * dv + 1e-30));
            if (rel > worst_row) worst_row = rel, worst_at = t * c.hq + h;
            double x = lse[(size_t)h * T + t], y = ref_lse[(size_t)t * c.hq + h];
            if (is_nan) x = x == x ? 1e30 : y = 0;
            double diff = x == y ? 0 : fabs(x - y) / std::max(1.0, fabs(y));
            worst_lse = std::max(worst_lse, diff == diff ? diff : 1e30);
        }
    }
    /* products of bytes: P has 3 bits of mantissa, and each weight its own error */
    double err = sqrt(num / std::max(den, 1e-30)), limit = pc.kind == FLASH_PREFILL_SM90_E4M3 ? 4e-2
                                                           : bf16                             ? 4e-3
                                                                                              : 1e-3;
    if (T == 0) err = 0;
    /* a product of bytes keeps about 14 bits of its sum */
    double lse_limit = pc.kind == FLASH_PREFILL_SM90_E4M3 ? 2e-3 : 3e-4;
    bool good = err < limit && worst_row < limit * 8 && worst_lse < lse_limit && bad_canary == 0 &&
                ticket == 0 && dealt == out;
    ok(good,
       "%s%s%s: %s/%s heads %d/%d D %d/%d page %d %s causal %d window %d chunk %d cap %g%s%s level %g splits "
       "%d "
       "tokens %d kernel %d: error %.1e, "
       "worst row %.1e (%d of %d), lse %.1e, canaries %d, pieces %d, counter %d%s",
       c.name.c_str(), c.far ? " " : "", far_names[c.far],
       c.e4m3_query ? "e4m3"
       : bf16       ? "bf16"
                    : "f16",
       e4m3 ? "e4m3" : "16", c.hq, c.hkv, c.d, dv, c.page, layout_names[c.layout], c.causal, c.window,
       c.chunk, c.cap, c.sinks ? " sinks" : "", c.alibi ? " alibi" : "", c.level, c.splits, T, pc.kind, err,
       worst_row, worst_at, T * c.hq, worst_lse, bad_canary, plan.counts.max_pieces, ticket,
       dealt == out ? "" : ", drawn tiles differ from those dealt out");
    for (const void *x :
         {(const void *)p.q_start,  (const void *)d_kstart,   (const void *)d_causal,  (const void *)p.sinks,
          (const void *)p.alibi,    (const void *)p.k_scale,  (const void *)p.v_scale, (const void *)d_table,
          (const void *)p.counts,   (const void *)p.items,    (const void *)p.tickets, (const void *)p.tiles,
          (const void *)p.part_out, (const void *)p.part_lse, (const void *)a.scores,  (const void *)a.out,
          (const void *)dq8,        (const void *)p.q_scale,  (const void *)a.lse,     (const void *)dq,
          (const void *)dk,         (const void *)dvv,        (const void *)d_out,     (const void *)d_lse,
          (const void *)cache})
        if (x) CK(cudaFree((void *)x));
}

int main() {
    int count = 0;
    cudaDeviceProp prop;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) skip_all("no CUDA device");
    CK(cudaGetDeviceProperties(&prop, 0));
    /* the Hopper kernels of a build without 90a are empty, and its plugins take the portable ones there */
    const bool is_portable = prop.major == 9 && strstr(TEXT(ATTN_CUDA_ARCH), "90a") == nullptr;
    device = {is_portable ? 8 : prop.major, prop.minor, prop.multiProcessorCount,
              (int)prop.sharedMemPerBlockOptin, (int)prop.sharedMemPerMultiprocessor};
    CK(flash_runtime_init(&runtime, &flash_all_kernels, device.num_sms, device.major == 9));
    uint64_t seed = tap_seed();
    const char *only = getenv("FLASH_TEST_ONLY");
    auto cases = all_cases();
    for (size_t i = 0; i < cases.size(); i++) {
        if ((only && !strstr(cases[i].name.c_str(), only)) || !part_takes()) continue;
        rng.seed(seed * 1000 + i);
        run_case(cases[i]);
    }
    return tap_done();
}
