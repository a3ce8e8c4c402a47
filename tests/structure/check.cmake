# Checks the shape of the tree: includes go downwards only, third-party headers stay where they belong, and every
# source file names its licence. Run by ctest: cmake -DROOT=<project> -P check.cmake
cmake_minimum_required(VERSION 3.25)
set(errors "")
macro(complain)
  string(CONCAT message ${ARGN})
  list(APPEND errors "${message}")
endmacro()

# Folder -> the folders it may include from.
set(sees_core core)
set(sees_ops core ops)
set(sees_data core ops data)
set(sees_distributed core ops distributed)
set(sees_models core ops data distributed models)
set(sees_cli core ops data distributed models cli)
set(sees_bench core ops data distributed models xylem bench)
set(sees_examples xylem ops)  # users: the umbrella header, and the pointwise engine for operations of their own

# Folder -> its subfolders, lowest first: includes between them go to an earlier one. "." stands for the files in the
# folder itself; where the list lacks it, they include and are included freely. A subfolder may have an order of its own:
# order_models_export is that of models/export.
set(order_core util device tensor random op autograd)
set(order_distributed record world topology plan group watchdog parallel job launch)
set(order_models nn optim checkpoint zoo quantize loop plan export train)
set(order_models_export trace onnx runtime lower import lint bundle)

# Complains where `file` includes a header of its own folder that lies higher in an order.
function(check_order file header)
  string(REPLACE "/" ";" from "${file}")
  string(REPLACE "/" ";" to "${header}")
  list(POP_FRONT from folder)
  list(POP_FRONT to same)
  while(folder STREQUAL same)
    string(APPEND path "_${folder}")
    set(here ".")
    set(there ".")
    list(LENGTH from depth)
    if(depth GREATER 1)
      list(GET from 0 here)
    endif()
    list(LENGTH to depth)
    if(depth GREATER 1)
      list(GET to 0 there)
    endif()
    set(order ${order${path}})
    if(order AND NOT here STREQUAL there)
      list(FIND order "${here}" mine)
      list(FIND order "${there}" theirs)
      foreach(name ${here} ${there})
        if(NOT name IN_LIST order AND NOT name STREQUAL ".")
          complain("${file}: order${path} in tests/structure/check.cmake does not say where ${name}/ belongs")
        endif()
      endforeach()
      if(theirs GREATER mine AND mine GREATER -1)
        complain("${file}: ${here}/ must not include ${header}, which lies higher")
      endif()
    endif()
    list(POP_FRONT from folder)
    list(POP_FRONT to same)
    list(LENGTH from depth)
    if(depth EQUAL 0)
      break()
    endif()
  endwhile()
  set(errors "${errors}" PARENT_SCOPE)
endfunction()

# Third-party header -> the files that may include it. The first pattern that matches a header decides.
set(homes
  "^cudnn" "^ops/backend/cudnn"
  "^cublas" "^ops/backend/cublaslt"
  "^Eigen/" "^ops/backend/eigen"
  "^(unsupported/)?Eigen" "^none"
  "^nvtx3/" "^core/autograd/record\\.cpp"
  "^nvml" "^distributed/topology/"
  "^nccl" "^distributed/"
  "^mpi\\.h" "^distributed/"
  "^hwloc|^pugixml" "^distributed/"
  "^(hdf5|H5)" "^data/[a-z0-9_]*\\.cpp"
  "^(jpeglib|png|turbojpeg)\\.h" "^data/[a-z0-9_]*\\.cpp"
  "^zlib" "^data/[a-z0-9_]*\\.cpp"
  "^onnx|^google/" "^models/export/"
  "^openssl/" "^models/export/onnx/hash_onnx"
  "^toml" "^(models|cli)/.*\\.cpp"
  "^nlohmann/" "^(distributed|models|data|cli|bench)/.*\\.cpp"
  "^CLI/" "^cli/"
  "^torch/" "^bench/")

# Public headers may use these beside the standard library: the CUDA ones where nvcc reads them.
set(public_extra cuda_runtime.h cuda_fp16.h cuda_bf16.h cuda_fp8.h omp.h immintrin.h)

file(GLOB_RECURSE sources RELATIVE ${ROOT} ${ROOT}/core/* ${ROOT}/ops/* ${ROOT}/data/* ${ROOT}/distributed/*
  ${ROOT}/models/* ${ROOT}/cli/* ${ROOT}/examples/* ${ROOT}/bench/* ${ROOT}/tests/* ${ROOT}/include/*)
list(FILTER sources INCLUDE REGEX "\\.(h|cpp|cu|cuh)$")
foreach(file ${sources})
  file(STRINGS ${ROOT}/${file} first LIMIT_COUNT 1)
  if(NOT first MATCHES "SPDX-License-Identifier: Apache-2.0")
    complain("${file}: the first line must be // SPDX-License-Identifier: Apache-2.0")
  endif()
  string(REGEX REPLACE "/.*" "" folder ${file})
  if(folder STREQUAL "tests" OR folder STREQUAL "include")
    continue()
  endif()
  file(STRINGS ${ROOT}/${file} lines REGEX "^[ \t]*#[ \t]*include")
  foreach(line ${lines})
    if(NOT line MATCHES "include[ \t]*([<\"])([^>\"]+)[>\"]")
      continue()
    endif()
    set(bracket "${CMAKE_MATCH_1}")
    set(header "${CMAKE_MATCH_2}")
    if(header MATCHES "^(core|ops|data|distributed|models|cli|bench|xylem)/")
      if(NOT CMAKE_MATCH_1 IN_LIST sees_${folder})
        complain("${file}: ${folder}/ must not include ${header}")
      endif()
      check_order(${file} ${header})
      continue()
    endif()
    if(bracket STREQUAL "\"")
      complain("${file}: write the path of \"${header}\" from the project's root")
    endif()
    set(rest ${homes})
    while(rest)
      list(POP_FRONT rest pattern home)
      if(header MATCHES "${pattern}")
        if(NOT file MATCHES "${home}")
          complain("${file}: <${header}> belongs in files that match ${home}")
        endif()
        break()
      endif()
    endwhile()
    if(file MATCHES "^(core|ops|data|distributed|models)/.*\\.h$" AND NOT header MATCHES "^[a-z_0-9]+$" AND NOT header IN_LIST public_extra
        AND NOT file MATCHES "^ops/backend/" AND NOT file MATCHES "_onnx\\.h$")
      complain("${file}: a header may include the standard library and the project's own headers, not <${header}>")
    endif()
  endforeach()
endforeach()

# The program in the README is the one that the consumer test builds and runs.
file(READ ${ROOT}/tests/consumer/main.cpp program)
string(REGEX REPLACE "^// SPDX[^\n]*\n" "" program "${program}")
file(READ ${ROOT}/README.md readme)
string(FIND "${readme}" "```cpp\n${program}```" at)
if(at EQUAL -1)
  complain("README.md: its program must be tests/consumer/main.cpp, word for word")
endif()

if(errors)
  list(JOIN errors "\n  " text)
  message(FATAL_ERROR "structure:\n  ${text}")
endif()
list(LENGTH sources count)
message("structure: ${count} files are where they belong")
