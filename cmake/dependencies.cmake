# Finds what Xylem can use, and says at the end of the configure step what was found and what is off.
# .carry/ holds copies of header-only dependencies for machines without a package manager (scripts/carry.sh).
list(APPEND CMAKE_PREFIX_PATH ${PROJECT_SOURCE_DIR}/.carry)

set(XY_SUMMARY "")
function(xy_note name state)
  string(LENGTH "${name}" n)
  math(EXPR pad "10 - ${n}")
  string(REPEAT " " ${pad} spaces)
  set(XY_SUMMARY "${XY_SUMMARY}\n     ${name}${spaces}${state}" PARENT_SCOPE)
endfunction()
function(xy_print_summary)
  message(STATUS "Xylem ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, "
    "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, -march=${XY_CPU_ARCH}${XY_SUMMARY}")
endfunction()

# A line that says `on` if the feature is on, else `off`.
function(xy_note_feature name feature on off)
  if(${feature})
    xy_note(${name} "${on}")
  else()
    xy_note(${name} "${off}")
  endif()
  set(XY_SUMMARY "${XY_SUMMARY}" PARENT_SCOPE)
endfunction()

# Settles an AUTO feature: ON when all the variables behind `missing` are true, else OFF. A feature that is asked for
# with ON and lacks something is an error.
function(xy_feature feature missing)
  set(found ON)
  foreach(needed ${ARGN})
    if(NOT ${needed})
      set(found OFF)
    endif()
  endforeach()
  if(${feature} STREQUAL "AUTO")
    set(${feature} ${found} PARENT_SCOPE)
  elseif(${feature} AND NOT found)
    message(FATAL_ERROR "${feature}=ON needs ${missing}.")
  endif()
endfunction()

# What comes with no package for CMake: <name>_INCLUDE_DIR where `header` is and, given LIBRARY, <name>_LIBRARY.
function(xy_find name header)
  cmake_parse_arguments(at "" "" "LIBRARY;HINTS;SUFFIXES" ${ARGN})
  find_path(${name}_INCLUDE_DIR ${header} HINTS ${at_HINTS} PATH_SUFFIXES include ${at_SUFFIXES})
  mark_as_advanced(${name}_INCLUDE_DIR)
  if(at_LIBRARY)
    find_library(${name}_LIBRARY NAMES ${at_LIBRARY} NAMES_PER_DIR HINTS ${at_HINTS} ${${name}_INCLUDE_DIR}/..
      PATH_SUFFIXES lib lib64)
    mark_as_advanced(${name}_LIBRARY)
  endif()
endfunction()

# The numbers that a header gives to these macros, joined with dots.
function(xy_version result header)
  set(version "")
  foreach(macro ${ARGN})
    file(STRINGS ${header} line REGEX "define +${macro} +[0-9]+" LIMIT_COUNT 1)
    string(REGEX REPLACE ".*${macro} +([0-9]+).*" "\\1" number "${line}")
    list(APPEND version "${number}")
  endforeach()
  list(JOIN version "." version)
  set(${result} ${version} PARENT_SCOPE)
endfunction()

# Header-only libraries: xy_headers(NAME target header package version-header three-version-macros [path suffix]).
function(xy_headers name target header package version_header macros)
  find_path(XY_${name}_INCLUDE ${header} PATH_SUFFIXES ${ARGN})
  mark_as_advanced(XY_${name}_INCLUDE)
  if(NOT XY_${name}_INCLUDE)
    message(FATAL_ERROR "Xylem needs ${name} (${header}): install ${package}, or run scripts/setup.sh.")
  endif()
  xy_version(version ${XY_${name}_INCLUDE}/${version_header} ${macros})
  add_library(${target} INTERFACE IMPORTED)
  if(NOT XY_${name}_INCLUDE IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
    set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${XY_${name}_INCLUDE})
  endif()
  set(${name}_VERSION ${version} PARENT_SCOPE)
  xy_note(${name} ${version})
  set(XY_SUMMARY "${XY_SUMMARY}" PARENT_SCOPE)
endfunction()

# ---- GPU -------------------------------------------------------------------------------------------------------------
set(cuda_state "off (XY_CUDA=OFF): CPU only")
if(XY_CUDA)
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(XY_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(XY_NVCC)
    if(XY_NVCC)
      set(CMAKE_CUDA_COMPILER ${XY_NVCC})
    endif()
  endif()
  check_language(CUDA)
  set(missing "the CUDA toolkit 12.4 or newer (nvcc)")
  if(CMAKE_CUDA_COMPILER)
    find_package(CUDAToolkit 12.4 QUIET)
    # CUDNN_ROOT may name a plain copy, such as the one in the pip package nvidia-cudnn.
    xy_find(CUDNN cudnn_version.h LIBRARY cudnn libcudnn.so.9
      HINTS ${CUDNN_ROOT} ENV CUDNN_ROOT ${CUDAToolkit_INCLUDE_DIRS}/.. ${CUDAToolkit_LIBRARY_DIR}/..)
    if(CUDAToolkit_FOUND)
      set(missing "cuDNN 9 (cudnn.h and libcudnn.so; set CUDNN_ROOT if they are in an unusual place)")
    endif()
  endif()
  set(cuda_state "off, CPU only: not found: ${missing}")
  xy_feature(XY_CUDA "${missing}" CUDAToolkit_FOUND CUDNN_INCLUDE_DIR CUDNN_LIBRARY)
endif()
if(XY_CUDA)
  set(CMAKE_CUDA_ARCHITECTURES ${XY_CUDA_ARCHS})
  enable_language(CUDA)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  xy_version(cudnn_version ${CUDNN_INCLUDE_DIR}/cudnn_version.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
  list(JOIN XY_CUDA_ARCHS " " archs)
  xy_note(CUDA "${CUDAToolkit_VERSION}, targets ${archs}")
  xy_note(cuDNN "${cudnn_version}, ${CUDNN_LIBRARY}")
else()
  xy_note(CUDA "${cuda_state}")
endif()

# ---- CPU -------------------------------------------------------------------------------------------------------------
xy_headers(Eigen Eigen3::Eigen Eigen/Core libeigen3-dev Eigen/src/Core/util/Macros.h
  "EIGEN_WORLD_VERSION;EIGEN_MAJOR_VERSION;EIGEN_MINOR_VERSION" eigen3)
if(Eigen_VERSION VERSION_LESS 3.4)
  message(FATAL_ERROR "Xylem needs Eigen 3.4 or newer, not ${Eigen_VERSION}.")
endif()
find_package(Threads REQUIRED)
find_package(OpenMP QUIET COMPONENTS CXX)
xy_note_feature(OpenMP OpenMP_CXX_FOUND "${OpenMP_CXX_VERSION}" "off: CPU work uses one core")

# ---- several processes -----------------------------------------------------------------------------------------------
# pip packages of the project's own environment (scripts/setup.sh).
file(GLOB XY_SITE_PACKAGES ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages)
if(XY_MPI)
  find_package(MPI COMPONENTS C QUIET)
  xy_feature(XY_MPI "MPI (libopenmpi-dev openmpi-bin)" MPI_C_FOUND)
endif()
xy_note_feature(MPI XY_MPI "${MPI_C_VERSION}, ${MPIEXEC_EXECUTABLE}"
  "off: one process alone (libopenmpi-dev openmpi-bin)")
if(XY_NCCL AND XY_CUDA)
  xy_find(NCCL nccl.h LIBRARY nccl libnccl.so.2
    HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_DIR})
  xy_feature(XY_NCCL "NCCL (nccl.h and libnccl.so; set NCCL_ROOT if they are in an unusual place)"
    NCCL_INCLUDE_DIR NCCL_LIBRARY)
elseif(XY_NCCL STREQUAL "AUTO")
  set(XY_NCCL OFF)
elseif(XY_NCCL)
  message(FATAL_ERROR "XY_NCCL=ON needs XY_CUDA.")
endif()
if(XY_NCCL)
  xy_version(nccl_version ${NCCL_INCLUDE_DIR}/nccl.h NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
endif()
xy_note_feature(NCCL XY_NCCL "${nccl_version}, ${NCCL_LIBRARY}" "off: one GPU alone")

# ---- topology --------------------------------------------------------------------------------------------------------
if(XY_HWLOC)
  xy_find(HWLOC hwloc.h LIBRARY hwloc)
  xy_feature(XY_HWLOC "hwloc (libhwloc-dev)" HWLOC_INCLUDE_DIR HWLOC_LIBRARY)
endif()
if(XY_NVML)
  xy_find(NVML nvml.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${XY_SITE_PACKAGES}
    SUFFIXES nvidia/cu13/include nvidia/cu12/include)
  xy_feature(XY_NVML "nvml.h (the CUDA toolkit's, or the pip package nvidia-nvml-dev)" NVML_INCLUDE_DIR)
endif()
if(XY_XML)
  xy_find(PUGIXML pugixml.hpp LIBRARY pugixml libpugixml.so.1)
  xy_feature(XY_XML "pugixml (libpugixml-dev)" PUGIXML_INCLUDE_DIR PUGIXML_LIBRARY)
endif()
set(topology "")
foreach(part "HWLOC:hwloc (libhwloc-dev)" "NVML:nvml.h (pip nvidia-nvml-dev)" "XML:pugixml (libpugixml-dev)")
  string(REGEX MATCH "^([A-Z]+):([a-z.]+) (.*)" unused "${part}")
  if(XY_${CMAKE_MATCH_1})
    list(APPEND topology "${CMAKE_MATCH_2}")
  else()
    list(APPEND topology "no ${CMAKE_MATCH_2} ${CMAKE_MATCH_3}")
  endif()
endforeach()
list(JOIN topology ", " topology)
xy_note(topology "${topology}")

# ---- deployment ------------------------------------------------------------------------------------------------------
if(XY_ONNX)
  find_package(Protobuf 3.12 QUIET)
  find_package(OpenSSL 1.1.1 QUIET COMPONENTS Crypto)  # the hash of the weights in a model's metadata
  find_program(XY_PYTHON python3)
  mark_as_advanced(XY_PYTHON)
  if(XY_PYTHON AND NOT XY_SITE_PACKAGES)  # a machine that has the package itself
    execute_process(COMMAND ${XY_PYTHON} -c "import onnx; print(onnx.__path__[0])" OUTPUT_VARIABLE onnx_folder
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  find_file(ONNX_PROTO onnx.proto HINTS ${XY_SITE_PACKAGES} ${onnx_folder} PATH_SUFFIXES onnx)
  mark_as_advanced(ONNX_PROTO)
  xy_feature(XY_ONNX
    "protobuf (libprotobuf-dev protobuf-compiler), OpenSSL (libssl-dev) and onnx.proto (the pip package onnx)"
    Protobuf_FOUND Protobuf_PROTOC_EXECUTABLE OPENSSL_FOUND ONNX_PROTO)
endif()
xy_note_feature(ONNX XY_ONNX "protobuf ${Protobuf_VERSION}, OpenSSL ${OPENSSL_VERSION}, ${ONNX_PROTO}"
  "off: no export (libprotobuf-dev protobuf-compiler libssl-dev, pip onnx)")

# ---- data ------------------------------------------------------------------------------------------------------------
if(XY_HDF5)
  find_package(HDF5 1.10.5 COMPONENTS C QUIET)
  xy_feature(XY_HDF5 "HDF5 1.10.5 or newer (libhdf5-dev)" HDF5_FOUND)
endif()
xy_note_feature(HDF5 XY_HDF5 "${HDF5_VERSION}" "off: no HDF5 datasets (libhdf5-dev)")
find_package(ZLIB QUIET)
set(XY_ZLIB ${ZLIB_FOUND})
xy_note_feature(zlib XY_ZLIB "${ZLIB_VERSION_STRING}" "off: no gzip files, no compressed HDF5 (zlib1g-dev)")
if(XY_IMAGES)
  find_package(JPEG QUIET)
  find_package(PNG QUIET)
  xy_feature(XY_IMAGES "libjpeg and libpng (libjpeg-dev, libpng-dev)" JPEG_FOUND PNG_FOUND)
endif()
xy_note_feature(images XY_IMAGES "libjpeg ${JPEG_VERSION}, libpng ${PNG_VERSION_STRING}"
  "off: no JPEG or PNG files (libjpeg-dev libpng-dev)")

# ---- command line, configuration -------------------------------------------------------------------------------------
xy_headers(toml++ tomlplusplus::tomlplusplus toml++/toml.h libtomlplusplus-dev toml++/impl/version.h
  "TOML_LIB_MAJOR;TOML_LIB_MINOR;TOML_LIB_PATCH")
xy_headers(json nlohmann_json::nlohmann_json nlohmann/json.hpp nlohmann-json3-dev nlohmann/detail/abi_macros.hpp
  "NLOHMANN_JSON_VERSION_MAJOR;NLOHMANN_JSON_VERSION_MINOR;NLOHMANN_JSON_VERSION_PATCH")
xy_headers(CLI11 CLI11::CLI11 CLI/CLI.hpp libcli11-dev CLI/Version.hpp
  "CLI11_VERSION_MAJOR;CLI11_VERSION_MINOR;CLI11_VERSION_PATCH")
