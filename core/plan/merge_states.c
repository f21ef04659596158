/* SPDX-License-Identifier: Apache-2.0 */
/* merge_states.c: n states of the same queries over disjoint keys, joined by their LSE (semantics 6.5, 2.14,
 * 8.4). */
#include "base/need.h"
#include "plan/element.h"

#include <attn/attn_merge.h>
#include <math.h>

enum { RUN = 64 }; /* elements of a row that are summed at once */

/* ln of a sum of exponentials that grows term by term; no term: -inf. */
struct log_sum {
    double top, sum;
};

static void add_term(struct log_sum *s, double x) {
    if (x == -INFINITY) return;
    if (s->sum == 0 || x > s->top) {
        s->sum *= s->sum == 0 ? 1 : exp(s->top - x);
        s->top = x;
    }
    s->sum += exp(x - s->top);
}

static double total_of(const struct log_sum *s) {
    return s->sum == 0 ? -INFINITY : s->top + log(s->sum);
}

/* The LSE of one token and head; an infinite one of either sign says that there was no key. */
static double lse_at(const DLTensor *lse, int64_t t, int64_t h) {
    const float x = ((const float *)attn_data(lse))[h * lse->strides[0] + t * lse->strides[1]];
    return isinf(x) ? -INFINITY : x;
}

static void lse_store(const DLTensor *lse, int64_t t, int64_t h, double x) {
    if (lse != NULL) ((float *)attn_data(lse))[h * lse->strides[0] + t * lse->strides[1]] = (float)x;
}

static void sink_term(struct log_sum *s, const DLTensor *sinks, int64_t h) {
    if (sinks != NULL) add_term(s, ((const float *)attn_data(sinks))[h * sinks->strides[0]]);
}

static char *row_at(const DLTensor *t, int64_t token, int64_t h) {
    return (char *)attn_data(t) + token * attn_byte_stride(t, 0) + h * attn_byte_stride(t, 1);
}

/* A state's weight: 0 if it has no key, not a number if something is not. */
static double weight_of(double lse, double total) {
    return lse == -INFINITY ? 0 : exp(lse - total);
}

/* [>= tokens, H, Dv]; heads and size below 0: not known yet. */
static int check_output(const DLTensor *t, const char *name, int64_t tokens, int64_t heads, int64_t size,
                        struct attni_place *place, attn_error_t *error) {
    const int64_t shape[3] = {-1, heads, size};
    int code = attn_check_tensor(t, name, 0, 3, shape, error);
    if (code == ATTN_OK) code = attni_place_add(place, t, name, error);
    if (code != ATTN_OK) return code;
    if (!attni_element_is_float(attn_dtype_of(t->dtype)))
        return attn_fail(error, ATTN_E_INVALID, name,
                         "%s has element type %s; expected float32, float16, bfloat16 or float64", name,
                         attn_dtype_name(attn_dtype_of(t->dtype)));
    if (t->shape[0] < tokens)
        return attn_fail(error, ATTN_E_INVALID, name, "%s has %lld rows for %lld tokens", name,
                         (long long)t->shape[0], (long long)tokens);
    return ATTN_OK;
}

static int check_lse(const DLTensor *t, const char *name, int64_t tokens, int64_t heads,
                     struct attni_place *place, attn_error_t *error) {
    const int64_t shape[2] = {heads, -1};
    int code = attn_check_tensor(t, name, ATTN_DTYPE_FLOAT32, 2, shape, error);
    if (code == ATTN_OK) code = attni_place_add(place, t, name, error);
    if (code == ATTN_OK && t->shape[1] < tokens)
        code = attn_fail(error, ATTN_E_INVALID, name, "%s has %lld columns for %lld tokens", name,
                         (long long)t->shape[1], (long long)tokens);
    return code;
}

static int check_sinks(const DLTensor *t, int64_t heads, struct attni_place *place, attn_error_t *error) {
    if (t == NULL) return ATTN_OK;
    int code = attn_check_tensor(t, "sinks", ATTN_DTYPE_FLOAT32, 1, &heads, error);
    return code != ATTN_OK ? code : attni_place_add(place, t, "sinks", error);
}

/* The merge of one token and head. Every run of a row is read from all states before it is written, so the
 * output may be one of them. */
static void merge_row(const attn_state_t *states, int32_t n, const DLTensor *output, int64_t t, int64_t h,
                      double total) {
    const uint32_t type = attn_dtype_of(output->dtype);
    const int64_t size = output->shape[2];
    char *to = row_at(output, t, h);
    double part[RUN], sum[RUN];
    for (int64_t at = 0; at < size; at += RUN) {
        const int64_t run = size - at < RUN ? size - at : RUN;
        memset(sum, 0, sizeof sum);
        for (int32_t i = 0; i < n; i++) {
            const double w = weight_of(lse_at(states[i].lse, t, h), total);
            if (w == 0) continue;
            const DLTensor *o = states[i].output;
            attni_elements_load(attn_dtype_of(o->dtype), row_at(o, t, h) + at * (o->dtype.bits / 8), run,
                                part);
            for (int64_t d = 0; d < run; d++)
                sum[d] += w * part[d];
        }
        attni_elements_store(type, sum, run, to + at * (output->dtype.bits / 8));
    }
}

int attn_merge_states(const attn_state_t *states, int32_t num_states, int64_t num_tokens,
                      const DLTensor *sinks, const DLTensor *output, const DLTensor *lse, void *stream,
                      attn_error_t *error) {
    struct attni_place place = {0};
    const attn_merge_table_t *table = NULL;
    ATTNI_NEED(states, "states", error);
    ATTNI_AT_LEAST(num_states, 1, "num_states", error);
    ATTNI_AT_LEAST(num_tokens, 0, "num_tokens", error);
    int code = check_output(output, "output", num_tokens, -1, -1, &place, error);
    if (code != ATTN_OK) return code;
    const int64_t heads = output->shape[1], size = output->shape[2];
    for (int32_t i = 0; i < num_states && code == ATTN_OK; i++) {
        code = check_output(states[i].output, "states.output", num_tokens, heads, size, &place, error);
        if (code == ATTN_OK) code = check_lse(states[i].lse, "states.lse", num_tokens, heads, &place, error);
    }
    if (code == ATTN_OK) code = check_sinks(sinks, heads, &place, error);
    if (code == ATTN_OK && lse != NULL) code = check_lse(lse, "lse", num_tokens, heads, &place, error);
    if (code == ATTN_OK) code = attni_place_table(&place, &table, error);
    if (code != ATTN_OK) return code;
    if (table != NULL)
        return table->merge_states(states, num_states, num_tokens, sinks, output, lse, stream, error);
    for (int64_t t = 0; t < num_tokens; t++)
        for (int64_t h = 0; h < heads; h++) {
            struct log_sum s = {-INFINITY, 0};
            for (int32_t i = 0; i < num_states; i++)
                add_term(&s, lse_at(states[i].lse, t, h));
            sink_term(&s, sinks, h);
            const double total = total_of(&s);
            merge_row(states, num_states, output, t, h, total);
            lse_store(lse, t, h, total);
        }
    return ATTN_OK;
}

int attn_merge_weigh(const DLTensor *output, const DLTensor *const *lses, int32_t num_states, int32_t own,
                     int64_t num_tokens, const DLTensor *sinks, const DLTensor *weighed, const DLTensor *lse,
                     void *stream, attn_error_t *error) {
    struct attni_place place = {0};
    const attn_merge_table_t *table = NULL;
    ATTNI_NEED(lses, "lses", error);
    ATTNI_AT_LEAST(num_states, 1, "num_states", error);
    ATTNI_AT_LEAST(num_tokens, 0, "num_tokens", error);
    if (own < 0 || own >= num_states)
        return attn_fail(error, ATTN_E_INVALID, "own", "own is %d; it must be one of the %d states", (int)own,
                         (int)num_states);
    int code = check_output(output, "output", num_tokens, -1, -1, &place, error);
    if (code != ATTN_OK) return code;
    const int64_t heads = output->shape[1];
    code = check_output(weighed, "weighed", num_tokens, heads, output->shape[2], &place, error);
    for (int32_t i = 0; i < num_states && code == ATTN_OK; i++)
        code = check_lse(lses[i], "lses", num_tokens, heads, &place, error);
    if (code == ATTN_OK) code = check_sinks(sinks, heads, &place, error);
    if (code == ATTN_OK && lse != NULL) code = check_lse(lse, "lse", num_tokens, heads, &place, error);
    if (code == ATTN_OK) code = attni_place_table(&place, &table, error);
    if (code != ATTN_OK) return code;
    if (table != NULL)
        return table->merge_weigh(output, lses, num_states, own, num_tokens, sinks, weighed, lse, stream,
                                  error);
    const uint32_t from = attn_dtype_of(output->dtype), to = attn_dtype_of(weighed->dtype);
    for (int64_t t = 0; t < num_tokens; t++)
        for (int64_t h = 0; h < heads; h++) {
            struct log_sum s = {-INFINITY, 0};
            for (int32_t i = 0; i < num_states; i++)
                add_term(&s, lse_at(lses[i], t, h));
            sink_term(&s, sinks, h);
            const double total = total_of(&s), w = weight_of(lse_at(lses[own], t, h), total);
            for (int64_t at = 0; at < output->shape[2]; at += RUN) {
                const int64_t run = output->shape[2] - at < RUN ? output->shape[2] - at : RUN;
                double part[RUN] = {0};
                if (w != 0)
                    attni_elements_load(from, row_at(output, t, h) + at * (output->dtype.bits / 8), run,
                                        part);
                for (int64_t d = 0; w != 0 && d < run; d++)
                    part[d] *= w;
                attni_elements_store(to, part, run, row_at(weighed, t, h) + at * (weighed->dtype.bits / 8));
            }
            lse_store(lse, t, h, total);
        }
    return ATTN_OK;
}
