# Installs the build to a temporary prefix, then configures, builds and runs the consumer against it.
#   cmake -DBUILD=<build> -DSOURCE=<this folder> -DWORK=<scratch> -DCUSTOM_OP=<file> [-DARCH=<CUDA target>]
#     [-DNVCC=<compiler>] [-DFLAGS=<compiler flags>] -P run.cmake
cmake_minimum_required(VERSION 3.25)
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed: ${command}\n${out}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
if(NVCC)
  set(cuda -DCMAKE_CUDA_COMPILER=${NVCC})
endif()
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G Ninja -DCMAKE_PREFIX_PATH=${WORK}/prefix
  -DCUSTOM_OP=${CUSTOM_OP} -DARCH=${ARCH} "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror ${FLAGS}" ${cuda})
run(${CMAKE_COMMAND} --build ${WORK}/build)
foreach(program consumer custom_op)
  run(${WORK}/build/${program})
  message("${program}:\n${out}")
endforeach()
