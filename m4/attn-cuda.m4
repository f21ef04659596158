# SPDX-License-Identifier: Apache-2.0
# ATTN_CHECK_CUDA
# ---------------
# --with-cuda[=DIR|auto|no] and --with-cuda-arch=LIST. Sets have_cuda, cuda_missing (why not) and substitutes NVCC,
# CUDA_ARCH, CUDA_CPPFLAGS (with the list as ATTN_CUDA_ARCH, 80_90a) and CUDA_LIBS (the static runtime: a plugin must load where there is no
# libcudart.so; libstdc++ for the guards around static variables in the stubs that nvcc writes). CUDA_LIBDIR is where plugins look
# last for libraries that they open at run time, and HAVE_CUBLASLT says whether the toolkit has cublasLt.h.
AC_DEFUN([ATTN_CHECK_CUDA], [
  AC_ARG_WITH([cuda],
    [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@], [CUDA toolkit for the GPU plugins: auto, no, yes or its folder (default: auto)])],
    [], [with_cuda=auto])
  AC_ARG_WITH([cuda-arch],
    [AS_HELP_STRING([--with-cuda-arch=LIST], [GPU architectures to compile for (default: "80 90a")])],
    [], [with_cuda_arch="80 90a"])
  AC_ARG_VAR([NVCC], [CUDA compiler])
  have_cuda=no cuda_missing= CUDA_CPPFLAGS= CUDA_LIBS= CUDA_LIBDIR=/usr/local/cuda/lib64 cuda_home=
  CUDA_ARCH=`AS_ECHO(["$with_cuda_arch"]) | tr ',;' '  ' | sed 's/sm_//g'`
  attn_arch_list=
  for attn_arch in $CUDA_ARCH; do
    AS_IF([expr "x$attn_arch" : 'x[[0-9]]\{2,3\}[[af]]\{0,1\}$' >/dev/null], [],
      [AC_MSG_ERROR([--with-cuda-arch: "$attn_arch" is not an architecture; expected numbers such as 80 or 90a])])
    attn_arch_list=$attn_arch_list${attn_arch_list:+_}$attn_arch
  done
  AS_IF([test -z "$attn_arch_list"], [AC_MSG_ERROR([--with-cuda-arch: no architecture; expected numbers such as 80 or 90a])])
  AS_IF([test "$with_cuda" != no], [
    attn_cuda_path=$PATH:/usr/local/cuda/bin:/opt/cuda/bin
    AS_CASE([$with_cuda], [auto|yes], [], [attn_cuda_path=$with_cuda/bin])
    AS_IF([test -z "$NVCC"], [AC_PATH_PROG([NVCC], [nvcc], [], [$attn_cuda_path])])
    AS_IF([test -z "$NVCC"], [cuda_missing="no nvcc found"], [
      dnl NVCC may be a wrapper, or "ccache /usr/local/cuda/bin/nvcc": its last word, then where toolkits are.
      attn_nvcc_home=`echo "$NVCC" | sed 's/.* //'` && attn_nvcc_home=`dirname "$attn_nvcc_home"`
      attn_nvcc_home=`cd "$attn_nvcc_home/.." && pwd`
      attn_cuda_homes="$attn_nvcc_home /usr/local/cuda /opt/cuda"
      AS_CASE([$with_cuda], [auto|yes], [], [attn_cuda_homes="$with_cuda"])
      for attn_home in $attn_cuda_homes; do
        for attn_dir in "$attn_home/lib64" "$attn_home/lib" "$attn_home/targets/x86_64-linux/lib" \
                        "$attn_home/lib/x86_64-linux-gnu"; do
          AS_IF([test -z "$CUDA_LIBS" && test -f "$attn_dir/libcudart_static.a"],
            [CUDA_LIBDIR=$attn_dir CUDA_LIBS="-L$attn_dir -lcudart_static -lstdc++ -lrt -lpthread -ldl"
             cuda_home=$attn_home])
        done
      done
      AS_IF([test -z "$CUDA_LIBS"], [cuda_missing="no libcudart_static.a below $attn_cuda_homes"])
    ])
    AS_IF([test -z "$cuda_missing"], [
      AC_MSG_CHECKING([whether $NVCC compiles for $CUDA_ARCH])
      AS_MKDIR_P([conftest.dir])
      AS_ECHO(['__global__ void f(int *p) { *p = 1; }']) > conftest.dir/t.cu
      attn_gencode=
      for attn_arch in $CUDA_ARCH; do
        attn_gencode="$attn_gencode -gencode=arch=compute_$attn_arch,code=sm_$attn_arch"
      done
      AS_IF([$NVCC -std=c++17 $attn_gencode -c -o conftest.dir/t.o conftest.dir/t.cu >&AS_MESSAGE_LOG_FD 2>&1],
        [have_cuda=yes
         CUDA_CPPFLAGS="-I$cuda_home/include -DATTN_CUDA_ARCH=$attn_arch_list"],
        [cuda_missing="nvcc does not compile a kernel for $CUDA_ARCH (see config.log)"])
      rm -rf conftest.dir
      AC_MSG_RESULT([$have_cuda])
    ])
    AS_IF([test "$have_cuda" = no && test "$with_cuda" != auto],
      [AC_MSG_ERROR([--with-cuda=$with_cuda: $cuda_missing])])
  ], [cuda_missing="switched off by --without-cuda"])
  AS_IF([test "$have_cuda" = no], [CUDA_LIBS=])
  dnl Machine code and its line numbers compressed to about a sixth. From 13 on every driver that runs the code can
  dnl read that; with a toolkit of 12 drivers older than 12.4 could not.
  CUDA_COMPRESS=
  AS_IF([test "$have_cuda" = yes && $NVCC --version 2>/dev/null | grep 'release 1@<:@3-9@:>@' >/dev/null &&
         $NVCC --help 2>/dev/null | grep -e '--compress-mode' >/dev/null], [CUDA_COMPRESS=--compress-mode=size])
  AC_SUBST([CUDA_COMPRESS])
  have_cublaslt=no have_nccl=no NCCL_LIBS=
  AS_IF([test "$have_cuda" = yes], [
    attn_save_cppflags=$CPPFLAGS
    CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS"
    AC_CHECK_HEADER([cublasLt.h], [have_cublaslt=yes])
    dnl NCCL, for a test of the adapter that engines compile: the library links none.
    attn_save_libs=$LIBS attn_nccl_flags="-L$CUDA_LIBDIR -L$cuda_home/lib"
    AC_CHECK_HEADER([nccl.h], [
      LIBS="$attn_nccl_flags $LIBS"
      AC_CHECK_LIB([nccl], [ncclGetVersion], [have_nccl=yes NCCL_LIBS="$attn_nccl_flags -lnccl"])
      LIBS=$attn_save_libs])
    CPPFLAGS=$attn_save_cppflags
  ])
  dnl GNU make's, for the rules of Makefile.am; nothing of it where no CUDA is compiled.
  CUDA_DEPENDENCIES=
  AS_IF([test "$have_cuda" = yes],
    [CUDA_DEPENDENCIES='-include $(wildcard kernels/cuda/*/$(DEPDIR)/*.d tests/gpu/$(DEPDIR)/*.d bench/$(DEPDIR)/*.d)'])
  AC_SUBST([CUDA_DEPENDENCIES])
  AM_SUBST_NOTMAKE([CUDA_DEPENDENCIES])
  dnl The instances that kernels/cuda/dense/dense_objects.h lists; Makefile.am has it in CONFIG_STATUS_DEPENDENCIES.
  DENSE_OBJECTS=`$CC -E -P "$srcdir/kernels/cuda/dense/dense_objects.h" | tr ';' '\n' |
    sed -e 's/^ *//' -e 's/ *$//' -e '/^$/d' -e 's/  */-/g' -e 's,.*,kernels/cuda/dense/&.lo,' | tr '\n' ' '`
  AC_SUBST([DENSE_OBJECTS])
  AM_CONDITIONAL([HAVE_CUBLASLT], [test "$have_cublaslt" = yes])
  AM_CONDITIONAL([HAVE_NCCL], [test "$have_nccl" = yes])
  AC_SUBST([NCCL_LIBS])
  AC_SUBST([CUDA_LIBDIR])
  AC_SUBST([CUDA_ARCH])
  AC_SUBST([CUDA_CPPFLAGS])
  AC_SUBST([CUDA_LIBS])
  AM_CONDITIONAL([HAVE_CUDA], [test "$have_cuda" = yes])
])
