/* SPDX-License-Identifier: Apache-2.0 */
/* mm_buckets.c: lengths and batch sizes of multimodal encoders, rounded so that few of them differ (semantics
 * 7.6). */
#include "base/arith.h"
#include "plan/check_batch.h"

#include <attn/attn.h>

int32_t attn_mm_max_seqlen(const int32_t *cu_seqlens, int32_t num_entries) {
    int64_t longest = 0;
    for (int32_t i = 1; cu_seqlens != NULL && i < num_entries; i++)
        longest = attni_max64(longest, (int64_t)cu_seqlens[i] - cu_seqlens[i - 1]);
    return (int32_t)attni_min64(longest, INT32_MAX);
}

int64_t attn_mm_seqlen_bucket(int64_t max_seqlen) {
    const int64_t smallest = 1024, largest = 131072;
    int64_t bucket = smallest;
    if (max_seqlen > INT64_MAX - largest) return max_seqlen;
    if (max_seqlen > largest) return attni_cdiv(max_seqlen, largest) * largest;
    while (bucket < max_seqlen)
        bucket *= 2;
    return bucket;
}

int32_t attn_mm_batch_bucket(int32_t num_seqs) {
    for (int32_t bucket = 8; bucket <= 64; bucket *= 2)
        if (num_seqs <= bucket) return bucket;
    return num_seqs > INT32_MAX - 7 ? num_seqs : (num_seqs + 7) / 8 * 8;
}

int attn_mm_pad_cu_seqlens(const int32_t *cu_seqlens, int32_t num_seqs, int32_t bucket, int32_t *padded,
                           attn_error_t *error) {
    int code = attni_check_starts(cu_seqlens, num_seqs, error);
    if (code != ATTN_OK) return code;
    ATTNI_AT_LEAST(bucket, num_seqs, "bucket", error);
    ATTNI_NEED(padded, "padded", error);
    for (int32_t i = 0; i <= bucket; i++)
        padded[i] = cu_seqlens[i < num_seqs ? i : num_seqs];
    return ATTN_OK;
}
