/* SPDX-License-Identifier: Apache-2.0 */
/* Context parallelism over MPI: the cases of ranks_world.h with one process a rank, and ranks that
 * disagree or do not come. ranks_mpi.sh compiles and starts it; each process says `pass` or `fail` and
 * rank 0 prints. */
#include "ranks_world.h"

#include <attn/attn_comm_mpi.h>

static int rank, world;

static void say(int is_good, const char *what) {
    int all = 0;
    MPI_Allreduce(&is_good, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    if (rank == 0) printf("%s over %d processes: %s\n", all ? "pass" : "fail", world, what);
    fflush(stdout);
}

static void run_cases(attn_context_t *context, const attn_comm_t *comm) {
    for (int i = 0; i < NUM_RANK_CASES; i++)
        for (uint32_t join = ATTN_JOIN_ALL_TO_ALL; join <= ATTN_JOIN_REDUCE_SCATTER; join++) {
            struct rank_case c = rank_cases[i];
            struct rank_world w;
            attn_error_t error = ERROR_INIT;
            char what[200];
            c.join = join;
            int code = make_rank_world(&w, &c, world, context, 7 + (uint64_t)i, &error);
            const size_t rows = (size_t)w.tokens * c.heads;
            char *output = malloc(rows * (size_t)w.value_size * 8 + 8);
            float *lse = malloc(rows * 4 + 8);
            if (code == ATTN_OK)
                code =
                    run_rank(&w, context, c.backend, c.dtype, world, rank, comm, c.seq, output, lse, &error);
            const double d = code == ATTN_OK ? rank_difference(&w, rank, c.dtype, output, lse) : 9;
            if (code != ATTN_OK) fprintf(stderr, "rank %d: %s\n", rank, error.text);
            snprintf(what, sizeof what, "%s, %s, %s", c.backend, c.what,
                     join == ATTN_JOIN_ALL_TO_ALL ? "all-to-all" : "reduce-scatter");
            say(d < c.tolerance, what);
            free(output), free(lse);
            free_rank_world(&w);
        }
}

/* float16 sums, which MPI does not know. */
static void sum_halves(const attn_comm_t *comm) {
    uint16_t send[MAX_WORLD * 3], got[3];
    attn_error_t error = ERROR_INIT;
    for (int i = 0; i < world * 3; i++)
        send[i] = attn_to_f16(rank + 0.25 * i);
    int code = comm->reduce_scatter(comm->ctx, send, got, 3, ATTN_DTYPE_FLOAT16, NULL, &error),
        bad = code != ATTN_OK;
    for (int i = 0; i < 3; i++)
        bad += attn_from_f16(got[i]) != world * (world - 1) / 2.0 + world * 0.25 * (3 * rank + i);
    say(!bad, "float16 sums");
}

static void disagree(attn_context_t *context, const attn_comm_t *comm) {
    struct rank_case c = rank_cases[0];
    struct rank_world w;
    attn_error_t error = ERROR_INIT;
    if (make_rank_world(&w, &c, world, context, 7, &error) != ATTN_OK) MPI_Abort(MPI_COMM_WORLD, 1);
    const size_t rows = (size_t)w.tokens * c.heads;
    char *output = malloc(rows * (size_t)w.value_size * 8 + 8);
    float *lse = malloc(rows * 4 + 8);
    if (rank == 1) w.c.interleave = 4;
    int code = run_rank(&w, context, c.backend, c.dtype, world, rank, comm, c.seq, output, lse, &error);
    say(code == ATTN_E_INVALID && strstr(error.text, "cp_interleave is 1 on rank 0 and 4 on rank 1") != NULL,
        "every rank is told who disagrees");
    free(output), free(lse);
    free_rank_world(&w);
}

/* Rank 1 waits for the others' word that they have given up. */
static void stay_away(void) {
    attn_comm_mpi_t mpi;
    attn_comm_t comm;
    attn_error_t error = ERROR_INIT;
    char send[8] = {0}, recv[8 * MAX_WORLD];
    if (attn_comm_mpi_init(&mpi, MPI_COMM_WORLD, 100, &comm, &error) != ATTN_OK) MPI_Abort(MPI_COMM_WORLD, 1);
    int code = rank == 1 ? ATTN_E_STATE : comm.all_gather(comm.ctx, send, recv, 8, NULL, &error);
    say(code == ATTN_E_STATE && (rank == 1 || strstr(error.text, "waited 100 ms for ranks 1 of") != NULL),
        "a rank that does not come is named");
    MPI_Abort(MPI_COMM_WORLD, 0);
}

int main(int argc, char **argv) {
    attn_comm_mpi_t mpi;
    attn_comm_t comm;
    attn_error_t error = ERROR_INIT;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (argc > 1) stay_away();
    attn_context_t *context = rank_context();
    if (attn_comm_mpi_init(&mpi, MPI_COMM_WORLD, 60000, &comm, &error) != ATTN_OK)
        MPI_Abort(MPI_COMM_WORLD, 1);
    run_cases(context, &comm);
    sum_halves(&comm);
    disagree(context, &comm);
    attn_comm_mpi_end(&mpi);
    attn_context_destroy(context);
    MPI_Finalize();
    return 0;
}
