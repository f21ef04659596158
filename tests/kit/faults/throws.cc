/* SPDX-License-Identifier: Apache-2.0 */
/* A C++ exception leaves open. Caught by: manners */
#define CXX_THROWS
#include "../cxx_plugin.cpp"
