# Features default to AUTO: on when what they need is found. ON makes a missing dependency an error.
set(XY_CUDA AUTO CACHE STRING "GPU support (AUTO, ON, OFF)")
set(XY_HDF5 AUTO CACHE STRING "HDF5 datasets")
set(XY_IMAGES AUTO CACHE STRING "JPEG and PNG decoding")
set(XY_CUDA_ARCHS "90a" CACHE STRING "CUDA targets; the release preset lists all")
set(XY_CPU_ARCH "native" CACHE STRING "-march for host code (native, x86-64-v3, ...)")
option(XY_TESTS "Build the tests" ON)
option(XY_SANITIZE "AddressSanitizer and UndefinedBehaviorSanitizer" OFF)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
