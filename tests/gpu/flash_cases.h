/* SPDX-License-Identifier: Apache-2.0 */
/* flash_cases.h: what flash_kernels runs, without how: shapes, masks, layouts and inputs of each case. */
#ifndef ATTN_TESTS_FLASH_CASES_H
#define ATTN_TESTS_FLASH_CASES_H

#include "kernels/cuda/dense/flash_params.h"

#include <string>
#include <utility>
#include <vector>

enum { NHD, HND, SEPARATE, CONTIGUOUS };
static const char *const layout_names[] = {"NHD", "HND", "separate", "contiguous"};

struct test_case {
    std::string name;
    std::vector<std::pair<int, int>> lens;  /* query, keys */
    int q_dtype = FLASH_BF16, kv_dtype = 0; /* 0: as q */
    int hq = 4, hkv = 2, d = 128, dv = 0, page = 16, layout = NHD;
    int causal = 1; /* 2: alternating per request */
    int chunk = 0, lookback = 0;
    int window = 0, decode_tokens = 0, splits = 0, force_sm80 = 1, per_head = 0;
    double cap = 0;
    bool sinks = false, alibi = false, extreme = false, captured = false;
    bool packed = false;     /* tiles of several heads, by the longest query (flash_pack_prefill) */
    bool e4m3_query = false; /* q becomes e4m3 with scale 1/2; q_dtype is that of the output */
    int far = 0;             /* scores far from zero: see set_far */
    double level = 0, scale = 0;
};

/* Channel 0 puts rows at a level: those of even tokens (of ONE in 75) at -level, others at level. */
enum { FAR_EQUAL = 1, FAR_AHEAD, FAR_LAST, FAR_FIRST, FAR_ONE, FAR_NAN };
static const char *const far_names[] = {"",           "equal",   "one ahead", "last keys",
                                        "first keys", "one row", "NaN"};

static std::vector<test_case> all_cases() {
    std::vector<test_case> v;
    const std::vector<std::pair<int, int>> mixed = {
        {1, 1},   {1, 15},    {1, 16},   {1, 17},    {5, 18},    {1, 63},   {1, 64},
        {1, 65},  {129, 463}, {1, 1328}, {64, 64},   {63, 63},   {65, 65},  {0, 7},
        {1, 127}, {1, 129},   {17, 300}, {128, 128}, {127, 255}, {3, 2011}, {130, 130}};
    const std::vector<std::pair<int, int>> decode = {{1, 1},    {1, 16},   {1, 17},   {2, 100},
                                                     {1, 1000}, {4, 2050}, {1, 4097}, {3, 3}};
    const std::vector<std::pair<int, int>> prefill = {{300, 300}, {257, 1000}, {1, 1},  {2, 2},
                                                      {129, 129}, {200, 777},  {16, 48}};
    auto add = [&](const char *name, auto change) {
        test_case c;
        c.name = name;
        c.lens = mixed;
        c.decode_tokens = 4;
        change(c);
        v.push_back(c);
    };
    /* dims: {force_sm80} x {prefill only, decode split} */
    for (int force = 1; force >= 0; force--) {
        for (int d : {64, 128, 256, 96, 80, 72, 192, 8, 40, 112, 160, 248})
            for (int dt : {FLASH_BF16, FLASH_F16})
                for (int mode = 0; mode < 2; mode++)
                    add(mode ? "decode" : "prefill", [&](test_case &c) {
                        c.d = d, c.q_dtype = dt, c.force_sm80 = force;
                        c.lens = mode ? decode : prefill;
                        c.decode_tokens = mode ? 4 : 0;
                    });
        for (int layout : {NHD, HND, SEPARATE, CONTIGUOUS})
            for (int page : {16, 32, 48, 64, 128, 256})
                add("layout", [&](test_case &c) {
                    c.layout = layout, c.page = page, c.force_sm80 = force;
                    c.q_dtype = page % 64 ? FLASH_BF16 : FLASH_F16;
                    c.d = page == 32 ? 80 : page == 128 ? 64 : 128;
                });
        for (auto hh : std::vector<std::pair<int, int>>{
                 {4, 4}, {8, 2}, {5, 1}, {32, 8}, {8, 1}, {16, 1}, {32, 1}, {24, 2}, {6, 2}})
            add("group", [&](test_case &c) { c.hq = hh.first, c.hkv = hh.second, c.force_sm80 = force; });
        for (int causal : {1, 0, 2})
            for (int window : {0, 1, 17, 64, 128, 256})
                for (int mode = 0; mode < 2; mode++)
                    add("mask", [&](test_case &c) {
                        c.causal = causal, c.window = window, c.force_sm80 = force;
                        if (mode) c.cap = 20., c.sinks = true, c.alibi = causal == 1;
                    });
        for (int f = 0; f < 8; f++)
            add("feature", [&](test_case &c) {
                c.cap = f & 1 ? 30. : 0., c.sinks = f & 2, c.alibi = f & 4, c.force_sm80 = force;
                c.d = f & 1 ? 64 : 128;
            });
        for (int chunk : {16, 48, 100, 512})
            add("chunk",
                [&](test_case &c) { c.chunk = chunk, c.lookback = chunk % 3, c.force_sm80 = force; });
        for (int extreme : {0, 1})
            add("extreme",
                [&](test_case &c) { c.extreme = extreme, c.q_dtype = FLASH_F16, c.force_sm80 = force; });
        add("diff", [&](test_case &c) { c.d = 192, c.dv = 128, c.force_sm80 = force; });
        add("diff", [&](test_case &c) { c.d = 128, c.dv = 64, c.force_sm80 = force, c.layout = CONTIGUOUS; });
        add("encoder", [&](test_case &c) {
            c.layout = CONTIGUOUS, c.causal = 0, c.decode_tokens = 0, c.hq = c.hkv = 4, c.d = 72,
            c.force_sm80 = force;
            c.lens = {{1, 1}, {64, 64}, {577, 577}, {127, 127}, {256, 256}, {0, 0}, {1025, 1025}};
        });
        add("long", [&](test_case &c) {
            c.lens = {{1024, 3000}, {2048, 2048}}, c.force_sm80 = force, c.hq = 8, c.hkv = 2;
        });
    }
    for (auto dd : std::vector<std::pair<int, int>>{{128, 128}, {192, 128}, {256, 256}, {80, 80}})
        add("drawn", [&](test_case &c) { /* many more tiles than multiprocessors, of unlike lengths */
                                         c.lens = {{1024, 3000}, {2048, 2048}, {300, 300}}, c.force_sm80 = 0;
                                         c.hq = 24, c.hkv = 2, c.d = dd.first, c.dv = dd.second;
                                         c.layout = dd.first == 128 ? NHD : CONTIGUOUS;
        });
    /* more short tiles than multiprocessors: heads in pairs and alone, blocks of which half is seen, first
     * ones and only ones */
    for (auto hh : std::vector<std::pair<int, int>>{{16, 8}, {12, 4}, {8, 8}, {32, 8}})
        for (int layout : {CONTIGUOUS, NHD, HND})
            for (int causal : {1, 0})
                add("short", [&](test_case &c) {
                    c.lens = {{64, 64}, {128, 192}, {65, 65},   {191, 449},
                              {1, 320}, {512, 512}, {129, 321}, {17, 700}};
                    c.hq = hh.first, c.hkv = hh.second, c.layout = layout, c.causal = causal,
                    c.force_sm80 = 0;
                    c.page = layout == HND ? 128 : 16, c.q_dtype = layout == HND ? FLASH_F16 : FLASH_BF16;
                    c.d = layout == CONTIGUOUS && hh.first == 12 ? 112 : 128;
                    c.window = layout == NHD && hh.first == 32 ? 100 : 0;
                });
    /* windows that begin within a block of keys, of tiles with one head and with two, over rows and pages */
    for (int d : {256, 128, 96, 64})
        for (int mode = 0; mode < 6; mode++)
            add("window", [&](test_case &c) {
                c.lens = {{700, 2000}, {1100, 1100}, {300, 1300}, {5, 900}}, c.force_sm80 = 0;
                c.d = d, c.decode_tokens = 0, c.window = mode & 1 ? 777 : 100, c.causal = mode < 4;
                c.layout = mode % 3 == 0 ? CONTIGUOUS : mode % 3 == 1 ? NHD : HND;
                c.page = mode == 1 ? 16 : mode == 2 ? 48 : 128, c.hq = mode == 3 ? 6 : 4, c.hkv = 2;
                c.sinks = mode == 4, c.alibi = mode == 5, c.chunk = 0;
            });
    for (int d : {256, 96})
        add("window", [&](test_case &c) { /* of chunks */
                                          c.lens = {{700, 2000}, {1100, 1100}}, c.force_sm80 = 0, c.d = d;
                                          c.decode_tokens = 0, c.chunk = 200, c.lookback = 1;
        });
    for (int d : {64, 128, 256, 96, 80, 72, 192, 8, 40})
        for (int mode = 0; mode < 4; mode++)
            add("e4m3", [&](test_case &c) {
                c.d = d, c.kv_dtype = FLASH_E4M3, c.q_dtype = mode & 1 ? FLASH_F16 : FLASH_BF16;
                c.per_head = mode & 1, c.layout = mode % 3, c.page = mode & 2 ? 48 : 16;
                c.lens = mode & 2 ? mixed : decode, c.cap = mode == 3 ? 15. : 0., c.sinks = mode == 2;
            });
    for (int d : {128, 96, 80, 64, 256, 112})
        for (int mode = 0; mode < 6; mode++)
            add("query8", [&](test_case &c) {
                c.d = d, c.kv_dtype = FLASH_E4M3, c.e4m3_query = true, c.force_sm80 = mode == 3;
                c.q_dtype = mode & 1 ? FLASH_F16 : FLASH_BF16;
                c.per_head = mode & 1, c.layout = mode % 3, c.page = mode & 2 ? 48 : 16;
                c.lens = mode == 1 ? decode : mode == 4 ? prefill : mixed;
                c.cap = mode == 2 ? 15. : 0., c.alibi = mode == 4, c.sinks = mode == 5;
                c.window = mode == 5 ? 200 : 0, c.causal = mode == 5 ? 2 : 1;
                if (mode == 0) c.hq = 16, c.hkv = 4, c.page = 128;
            });
    for (int splits : {1, 2, 3, 7, 64})
        for (int kv : {0, (int)FLASH_E4M3})
            add("splits", [&](test_case &c) {
                c.splits = splits, c.kv_dtype = kv, c.lens = decode, c.sinks = splits & 1,
                c.window = splits == 7 ? 700 : 0;
                c.hq = 8, c.hkv = 2;
            });
    const std::vector<std::vector<std::pair<int, int>>> small = {
        {{1, 1024}},
        {{1, 6000}},
        {{1, 1}},
        {{2, 300}, {1, 12000}},
        {{1, 900}, {1, 64}, {4, 5000}, {0, 9}},
        {{1, 3000}, {1, 3001}, {1, 15}, {1, 2000}, {1, 9000}, {3, 700}, {1, 128}, {1, 1}},
        {{1, 33000}, {1, 70}}};
    for (size_t i = 0; i < small.size(); i++)
        for (int mode = 0; mode < 8; mode++)
            add("small", [&](test_case &c) {
                c.lens = small[i], c.captured = mode & 1, c.force_sm80 = 0;
                c.kv_dtype = mode & 2 ? (int)FLASH_E4M3 : 0, c.sinks = mode & 4;
                c.hq = mode & 4 ? 32 : 8, c.hkv = mode & 4 ? 8 : 1, c.d = i == 3 ? 80 : mode == 5 ? 256 : 128;
                if (i == 3 && mode & 1)
                    c.hq = c.hkv = 2; /* one row: columns that are no multiple of a warp */
            });
    /* 17 to 71 rows of a KV head: CTAs of 24 and 32 rows, one and more, all rows there or the first ones of
     * the last CTA; in pieces, clusters, captured; few CTAs and more than fit at once */
    for (auto hh : std::vector<std::pair<int, int>>{{16, 2}, {24, 2}, {6, 2}, {40, 1}, {71, 1}, {32, 2}})
        for (int mode = 0; mode < 14; mode++)
            add("rows", [&](test_case &c) {
                const int group = hh.first / hh.second, most = std::max(1, std::min(16, 64 / group)),
                          tokens = mode % 3 ? most : std::max(1, most / 2);
                c.hq = hh.first, c.hkv = hh.second, c.decode_tokens = tokens, c.force_sm80 = mode == 7;
                static const int d[] = {128, 64, 96, 80, 128, 128, 128, 128, 64, 96, 112, 128, 128, 64};
                c.d = d[mode];
                c.q_dtype = mode % 4 == 3 ? FLASH_F16 : FLASH_BF16;
                c.kv_dtype = mode == 4 || mode == 8 || mode == 11 ? FLASH_E4M3 : 0;
                c.per_head = mode == 4, c.e4m3_query = mode == 11;
                c.lens.clear();
                for (int i = 0; i < (mode % 5 == 4 ? 100 : 1 + mode % 5); i++) {
                    const int q = i % 9 == 4 ? 0 : 1 + (i * 5 + mode + tokens - 1) % tokens;
                    c.lens.push_back({q, q + (i * 371 + mode * 677) % 3000});
                }
                c.lens[0] = {tokens, mode == 5 ? 33000 : mode == 6 ? tokens : 5000};
                c.layout = mode % 3, c.page = mode % 2 ? 16 : 48, c.captured = mode == 5 || mode == 9;
                c.causal = mode == 10 ? 2 : 1, c.sinks = mode % 2, c.alibi = mode == 6 || mode == 13;
                c.window = mode == 3 || mode == 12 ? 300 : 0, c.cap = mode == 12 ? 20. : 0.;
                c.chunk = mode == 2 ? 700 : 0, c.lookback = 1, c.splits = mode == 1 ? 5 : 0;
            });
    for (int mode = 0; mode < 3; mode++) /* one wave of narrow CTAs, two of others */
        add("narrow", [&](test_case &c) {
            c.lens.clear();
            for (int i = 0; i < 60; i++)
                c.lens.push_back({mode == 2 && i % 7 == 0 ? 2 : 1, 500 - 3 * i % 64});
            c.hq = 32, c.hkv = 8, c.d = mode == 1 ? 64 : 128, c.sinks = mode == 1, c.force_sm80 = mode == 2;
        });
    /* scores far from zero, short tiles and long ones (of 1024 keys and more), more of them than
     * multiprocessors, since a row's warp falls behind its tile */
    const std::vector<std::pair<int, int>> shorts = {{300, 300}, {64, 200}, {1, 1}, {257, 700}, {130, 130}},
                                           longs = {{1100, 1300}, {140, 1900}, {64, 1100}};
    const std::vector<std::pair<int, int>> dims = {{128, 128}, {64, 64},   {80, 80},   {72, 72},  {96, 96},
                                                   {256, 256}, {192, 128}, {192, 192}, {112, 112}};
    for (size_t i = 0; i < dims.size() * 12; i++)
        add("far", [&](test_case &c) {
            const int mode = (int)(i % 12);
            c.d = dims[i / 12].first, c.dv = dims[i / 12].second, c.hq = 8, c.hkv = mode % 3 ? 4 : 8;
            c.decode_tokens = 0;
            c.force_sm80 = (mode == 0 && i % 5 == 0) || (c.d == 112 && mode % 2 == 0); /* in pages: always */
            c.lens = mode % 4 == 1 ? longs : shorts, c.far = mode % 6 + 1;
            c.q_dtype = mode % 5 == 3 ? FLASH_F16 : FLASH_BF16;
            c.layout = mode % 2 ? CONTIGUOUS : mode == 4 ? HND : NHD, c.page = mode == 2 ? 64 : 16;
            c.scale = c.q_dtype == FLASH_F16 ? 8 : 0.1;
            c.level = mode == 5 ? 1e9 : mode == 6 && !c.force_sm80 ? 3e38 : mode == 7 ? 1e37 : 1e10;
            c.causal = mode != 8 && mode != 3, c.window = mode == 9 || mode == 2 ? 150 : 0;
            c.sinks = mode == 10, c.alibi = mode == 4 && !c.force_sm80; /* portable: scores in float32 */
        });
    for (int i = 0; i < 24; i++)
        add("far e4m3", [&](test_case &c) {
            c.kv_dtype = FLASH_E4M3, c.e4m3_query = i % 2, c.d = i % 8 == 6 ? 64 : 128, c.hq = 8, c.hkv = 4;
            c.q_dtype = i % 4 < 2 ? FLASH_BF16 : FLASH_F16, c.force_sm80 = i % 12 == 11;
            c.decode_tokens = 0, c.far = i / 2 % 5 + 1, c.lens = i % 3 ? shorts : longs;
            c.scale = i % 2 ? 1e8 : 1e5, c.per_head = i % 3 == 1, c.causal = i % 7 != 3, c.level = 1e10;
            c.page = i % 3 == 2 ? 128 : 16, c.layout = i % 3, c.window = i % 5 == 4 ? 150 : 0;
            c.sinks = i % 6 == 5;
        });
    /* few tokens of several heads a tile: all of a tile's rows, or heads that it has not; more tiles than
     * multiprocessors, and few; contexts of one block and of many. Modes from 12 on: up to 8 tokens of two
     * heads a warp */
    for (auto hh : std::vector<std::pair<int, int>>{
             {16, 4}, {64, 8}, {10, 2}, {14, 2}, {12, 4}, {24, 2}, {32, 2}, {20, 1}, {36, 2}})
        for (int m = 0; m < (hh.first / hh.second > 8 ? 24 : 12); m++)
            add("packed", [&](test_case &c) {
                const int group = hh.first / hh.second, mode = m % 12,
                          most = m >= 12                    ? 8
                                 : group == 3 || group == 4 ? 32
                                                            : 16;
                c.lens.clear();
                for (int i = 0; i < (mode % 3 == 2 ? 5 : 80); i++) {
                    const int q = i % 11 == 5 ? 0 : 1 + (i * 7 + mode) % (mode == 6 ? most / 2 : most);
                    c.lens.push_back({q, mode % 3 == 0 ? q + i % 40 : q + (i * 131 + mode * 977) % 3000});
                }
                c.packed = true, c.hq = hh.first, c.hkv = hh.second, c.decode_tokens = 0, c.force_sm80 = 0;
                c.d = mode == 3 || mode == 9 ? 256 : mode == 5 || mode == 8 || mode == 11 ? 64 : 128;
                c.q_dtype = mode % 4 == 2 ? FLASH_F16 : FLASH_BF16;
                c.layout = mode == 11 ? CONTIGUOUS : mode % 3, c.page = mode % 2 ? 16 : 64;
                c.kv_dtype = mode == 4 || mode == 7 ? FLASH_E4M3 : 0, c.per_head = mode == 7;
                c.causal = mode == 5 ? 0 : mode == 10 ? 2 : 1, c.sinks = mode == 1 || mode == 8;
                c.window = mode == 8 || mode == 9 ? 100 : 0, c.alibi = mode == 6,
                c.cap = mode == 10 ? 20. : 0.;
                c.chunk = 0;
                if (mode == 2 || mode == 0) c.far = FAR_ONE, c.level = 1e10, c.scale = mode == 2 ? 8 : 0.1;
            });
    /* warpgroups with the heads of a group and 8, 16 or 32 tokens each: prompts that end around theirs */
    for (auto hh : std::vector<std::pair<int, int>>{{16, 2}, {8, 2}, {4, 2}, {32, 2}})
        for (int mode = 0; mode < 9; mode++)
            add("bands", [&](test_case &c) {
                c.lens = mode % 3 == 2
                             ? mixed
                             : std::vector<std::pair<int, int>>{{700, 2000}, {23, 23}, {24, 100}, {25, 300},
                                                                {97, 1100},  {5, 900}, {193, 193}};
                c.hq = hh.first, c.hkv = hh.second, c.d = mode == 4 ? 40 : 64, c.decode_tokens = 0,
                c.force_sm80 = 0;
                c.layout = mode % 4 == 3 ? CONTIGUOUS : mode % 2 ? NHD : HND, c.page = mode == 1 ? 48 : 16;
                c.q_dtype = mode % 4 == 2 ? FLASH_F16 : FLASH_BF16, c.chunk = mode == 6 ? 200 : 0,
                c.lookback = 1;
                c.window = mode < 2 ? 128 : mode == 3 ? 300 : 0, c.sinks = mode < 2 || mode == 4;
                c.alibi = mode == 7, c.cap = mode == 8 ? 1.5 : 0., c.causal = mode == 3 ? 2 : mode != 4;
                if (mode == 5 || mode == 2) c.far = FAR_ONE, c.level = 1e10, c.scale = mode == 2 ? 8 : 0.1;
            });
    add("auto", [&](test_case &c) { c.lens = {{1, 65536}}, c.hq = 8, c.hkv = 2; });
    add("auto", [&](test_case &c) { c.lens = {{1, 9000}, {1, 300}, {2, 20000}, {1, 1}}, c.sinks = true; });
    return v;
}

#endif
