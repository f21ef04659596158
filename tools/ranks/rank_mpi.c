/* SPDX-License-Identifier: Apache-2.0 */
/* rank_mpi.c: the processes of mpirun as ranks, over the adapter that engines compile (attn_comm_mpi.h). */
#include "ranks/rank_mpi.h"

#include <attn/attn_plugin_util.h>
#include <stdlib.h>

int rank_mpi_processes(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text != NULL && atoi(text) > 0) return atoi(text);
    }
    return 0;
}

#ifdef HAVE_MPI

#include <attn/attn_comm_mpi.h>
#include <time.h>

enum { LIMIT_MS = 600000 };

struct rank_mpi {
    attn_comm_mpi_t adapter;
};

int rank_mpi_start(rank_mpi_t **made, attn_comm_t *comm, attn_error_t *error) {
    rank_mpi_t *mpi = calloc(1, sizeof *mpi);
    if (mpi == NULL) return attn_fail(error, ATTN_E_NO_MEMORY, "", "out of memory for MPI");
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS) {
        free(mpi);
        return attn_fail(error, ATTN_E_STATE, "", "MPI_Init failed");
    }
    const int code = attn_comm_mpi_init(&mpi->adapter, MPI_COMM_WORLD, LIMIT_MS, comm, error);
    if (code != ATTN_OK) rank_mpi_abort(mpi, 3);
    *made = mpi;
    return code;
}

void rank_mpi_rest(rank_mpi_t *mpi) {
    const struct timespec nap = {.tv_nsec = 2000000};
    MPI_Request all_here;
    int is_done = 0;
    (void)mpi;
    MPI_Ibarrier(MPI_COMM_WORLD, &all_here);
    for (MPI_Test(&all_here, &is_done, MPI_STATUS_IGNORE); !is_done;
         MPI_Test(&all_here, &is_done, MPI_STATUS_IGNORE))
        nanosleep(&nap, NULL);
}

void rank_mpi_abort(rank_mpi_t *mpi, int status) {
    (void)mpi;
    fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, status);
}

void rank_mpi_end(rank_mpi_t *mpi) {
    if (mpi == NULL) return;
    attn_comm_mpi_end(&mpi->adapter);
    free(mpi);
    MPI_Finalize();
}

#else

int rank_mpi_start(rank_mpi_t **made, attn_comm_t *comm, attn_error_t *error) {
    (void)made, (void)comm;
    return attn_fail(
        error, ATTN_E_UNSUPPORTED, "ranks",
        "mpirun started %d processes, and this attn has no MPI: configure libattn with --with-mpi, or "
        "leave mpirun away, and the ranks are threads",
        rank_mpi_processes());
}
void rank_mpi_rest(rank_mpi_t *mpi) {
    (void)mpi;
}
void rank_mpi_abort(rank_mpi_t *mpi, int status) {
    (void)mpi, (void)status;
}
void rank_mpi_end(rank_mpi_t *mpi) {
    (void)mpi;
}

#endif
