/* SPDX-License-Identifier: Apache-2.0 */
/* rank_mpi.h: ranks that are processes of MPI. Compiled in with --with-mpi; without it rank_mpi_start
 * says so where mpirun started the command. */
#ifndef ATTN_TOOLS_RANK_MPI_H
#define ATTN_TOOLS_RANK_MPI_H

#include <attn/attn_comm.h>

/* How many processes mpirun started, by its environment; 0: none, the command runs alone. */
int rank_mpi_processes(void);

typedef struct rank_mpi rank_mpi_t;
/* [collective] */
int rank_mpi_start(rank_mpi_t **made, attn_comm_t *comm, attn_error_t *error);
/* Waits for all processes without using the processor. [collective] */
void rank_mpi_rest(rank_mpi_t *mpi);
/* After an error of the communicator, from which MPI has no way back: ends all processes with this status. */
void rank_mpi_abort(rank_mpi_t *mpi, int status);
void rank_mpi_end(rank_mpi_t *mpi); /* NULL is allowed. [collective] */

#endif
