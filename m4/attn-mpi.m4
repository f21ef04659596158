# SPDX-License-Identifier: Apache-2.0
# ATTN_MPI
# --------
# --with-mpi: `attn run --ranks` and `attn bench --ranks` under mpirun. Off unless asked for, because the command then
# links MPI; libattn.so never does. Sets MPI_CPPFLAGS and MPI_LIBS.
AC_DEFUN([ATTN_MPI], [
  AC_ARG_WITH([mpi], [AS_HELP_STRING([--with-mpi], [attn run --ranks under mpirun (Debian: libopenmpi-dev)])], [], [with_mpi=no])
  MPI_CPPFLAGS= MPI_LIBS=
  AS_IF([test "$with_mpi" != no], [
    PKG_CHECK_MODULES([OMPI], [ompi-c], [MPI_CPPFLAGS="-DHAVE_MPI $OMPI_CFLAGS" MPI_LIBS=$OMPI_LIBS],
      [AC_MSG_ERROR([--with-mpi: no Open MPI found by pkg-config: install it (Debian: libopenmpi-dev)])])
  ])
  AC_SUBST([MPI_CPPFLAGS])
  AC_SUBST([MPI_LIBS])
])
