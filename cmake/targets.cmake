# How the project's own targets are compiled, linked and installed.

# -fno-math-errno and -fno-trapping-math change no result; they let loops with sqrt and comparisons be vectorised.
function(xy_configure target)
  set(host -Wall -Wextra -march=${XY_CPU_ARCH} -fno-math-errno -fno-trapping-math -fno-semantic-interposition)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Known false alarms: on references to registered operations (13 and later), on string concatenation (12).
    list(APPEND host -Wno-dangling-reference -Wno-restrict)
  endif()
  if(NOT OpenMP_CXX_FOUND)
    list(APPEND host -Wno-unknown-pragmas)  # those of OpenMP
  endif()
  if(XY_SANITIZE)
    list(APPEND host -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
  endif()
  list(JOIN host "," nvcc_host)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${host}>
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${nvcc_host};--expt-relaxed-constexpr;-lineinfo;-diag-suppress=20012>")
endfunction()

# Gives `target` a library where the feature is on, and says so in XY_WITH_<feature>.
function(xy_use target feature include_dirs libraries)
  if(XY_${feature})
    target_compile_definitions(${target} PRIVATE XY_WITH_${feature})
    target_include_directories(${target} SYSTEM PRIVATE ${include_dirs})
    target_link_libraries(${target} PRIVATE ${libraries})
  endif()
endfunction()

# The third-party libraries, all private: programs that use Xylem see the standard library and Xylem's headers alone.
function(xy_link_dependencies target)
  target_include_directories(${target} SYSTEM PRIVATE ${XY_GENERATED})
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:Eigen3::Eigen> $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>
    $<BUILD_INTERFACE:tomlplusplus::tomlplusplus> Threads::Threads ${CMAKE_DL_LIBS})
  if(OpenMP_CXX_FOUND)
    target_link_libraries(${target} PRIVATE ${OpenMP_CXX_LIBRARIES})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${OpenMP_CXX_FLAGS}>
      $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${OpenMP_CXX_FLAGS}>)
  endif()
  if(XY_CUDA)
    target_compile_definitions(${target} PUBLIC XY_WITH_CUDA)
    target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${CUDNN_INCLUDE_DIR})
    target_link_libraries(${target} PRIVATE CUDA::cudart CUDA::cublasLt CUDA::cublas ${CUDNN_LIBRARY})
  endif()
  xy_use(${target} MPI "" MPI::MPI_C)
  xy_use(${target} NCCL "${NCCL_INCLUDE_DIR}" "${NCCL_LIBRARY}")
  xy_use(${target} HWLOC "${HWLOC_INCLUDE_DIR}" "${HWLOC_LIBRARY}")
  xy_use(${target} NVML "${NVML_INCLUDE_DIR}" "")  # its types; the library is loaded at run time
  xy_use(${target} XML "${PUGIXML_INCLUDE_DIR}" "${PUGIXML_LIBRARY}")
  xy_use(${target} ONNX "${Protobuf_INCLUDE_DIRS}" "${Protobuf_LIBRARIES};OpenSSL::Crypto")
  xy_use(${target} HDF5 "${HDF5_INCLUDE_DIRS}" "${HDF5_LIBRARIES}")
  xy_use(${target} ZLIB "" ZLIB::ZLIB)
  xy_use(${target} IMAGES "" "JPEG::JPEG;PNG::PNG")
endfunction()

# find_package(xylem) after `cmake --install`: target xylem::xylem, header <xylem/xylem.h>.
function(xy_install)
  set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/xylem)
  install(TARGETS xylem EXPORT xylemTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    FILE_SET umbrella DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILE_SET headers DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/xylem)
  install(EXPORT xylemTargets NAMESPACE xylem:: DESTINATION ${config_dir})
  configure_file(cmake/xylemConfig.cmake.in ${PROJECT_BINARY_DIR}/xylemConfig.cmake @ONLY)
  include(CMakePackageConfigHelpers)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/xylemConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/xylemConfig.cmake ${PROJECT_BINARY_DIR}/xylemConfigVersion.cmake
    DESTINATION ${config_dir})
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
endfunction()
