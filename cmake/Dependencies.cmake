# The libraries that Escalera stands on. Debian and Ubuntu have them all (scripts/setup.sh installs them).

set(setup_hint "scripts/setup.sh installs it on Debian and Ubuntu")

macro(escalera_require package)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "Escalera needs ${package}, which was not found; ${setup_hint}.")
  endif()
endmacro()

escalera_require(Threads)
escalera_require(fmt)
escalera_require(Eigen3 3.4 NO_MODULE)
escalera_require(CLI11)
escalera_require(nlohmann_json)

# Parallelism is ours: a thread computes its own part of the work with serial products. A second pool of threads inside Eigen
# would compete with the first, and units with and without -fopenmp would instantiate different code under one name.
add_library(escalera_eigen INTERFACE)
target_link_libraries(escalera_eigen INTERFACE Eigen3::Eigen)
target_compile_definitions(escalera_eigen INTERFACE EIGEN_DONT_PARALLELIZE)

if(ESCALERA_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C++ bindings were removed from MPI long ago; only their headers linger
  find_package(MPI COMPONENTS CXX QUIET)
  if(NOT MPI_CXX_FOUND)
    message(FATAL_ERROR "MPI was not found; ${setup_hint}. To build without it (ranks as threads of one process): "
                        "add -DESCALERA_MPI=OFF.")
  endif()
endif()

# oneDNN is looked for by hand: the CMake package that distributions ship also demands OpenCL headers, which we do not need.
# OpenMP comes along for one call only: each of our threads tells oneDNN's runtime to compute on that thread alone.
set(ESCALERA_HAVE_ONEDNN OFF)
if(ESCALERA_ONEDNN)
  find_path(ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
  find_library(ONEDNN_LIBRARY dnnl)
  find_package(OpenMP COMPONENTS CXX QUIET)
  mark_as_advanced(ONEDNN_INCLUDE_DIR ONEDNN_LIBRARY)
  if(ONEDNN_INCLUDE_DIR AND ONEDNN_LIBRARY AND OpenMP_CXX_FOUND)
    set(ESCALERA_HAVE_ONEDNN ON)
    add_library(escalera_onednn INTERFACE)
    target_include_directories(escalera_onednn SYSTEM INTERFACE ${ONEDNN_INCLUDE_DIR})
    target_link_libraries(escalera_onednn INTERFACE ${ONEDNN_LIBRARY} OpenMP::OpenMP_CXX)
  endif()
endif()

if(ESCALERA_TESTS)
  escalera_require(GTest)
  include(GoogleTest)
endif()

if(ESCALERA_BENCH)
  find_package(benchmark QUIET)
endif()

if(ESCALERA_MPI)
  set(mpi_text "${MPI_CXX_LIBRARY_VERSION_STRING}")
  string(REGEX REPLACE ",.*" "" mpi_text "${mpi_text}")
  if(NOT mpi_text)
    set(mpi_text "MPI ${MPI_CXX_VERSION}")
  endif()
else()
  set(mpi_text "no (ranks are threads of one process)")
endif()
message(STATUS "Escalera: ${CMAKE_BUILD_TYPE}, -march=${ESCALERA_MARCH}; Eigen ${Eigen3_VERSION}; "
               "oneDNN: ${ESCALERA_HAVE_ONEDNN}; MPI: ${mpi_text}; sanitizers: ${ESCALERA_SANITIZE}")
