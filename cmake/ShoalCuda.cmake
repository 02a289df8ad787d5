# CUDA, where there is a GPU or SHOAL_WITH_CUDA asks for it, and where the toolkit is: SHOAL_CUDA
# says whether. Programs link the runtime statically and find the driver and the large libraries
# (cuBLASLt, cuDNN, NCCL) when they run, so that one build starts on machines without any of them.
#
# shoal_cuda_kernels(NAME SOURCES x.cu ...): kernels, compiled by nvcc into NAME for GPUs, and by
# the host's compiler into NAME_fake, which runs them on the CPU (core/gpu/kernel/kernel.h).
# Whoever links one of the two links the runtime that goes with it: shoal_cuda_runtime or
# shoal_fake_cuda.
set(SHOAL_WITH_CUDA AUTO CACHE STRING "Build for CUDA: ON, OFF, or AUTO, where there is a GPU")
set_property(CACHE SHOAL_WITH_CUDA PROPERTY STRINGS AUTO ON OFF)
set(SHOAL_CUDA_ARCHITECTURES "" CACHE STRING
  "GPU architectures of kernels, as CMake names them; empty: that of this machine's GPU, or 90")
set(SHOAL_CUDA FALSE)
set(SHOAL_CUDNN FALSE)
set(SHOAL_NCCL FALSE)

# A library whose headers may come with the toolkit or by themselves: where there is `header`,
# SHOAL_${name} and the target shoal_${name}_headers, its name in small letters; else a line that
# says what the build is without.
function(shoal_optional_header name header without)
  find_path(SHOAL_${name}_INCLUDE ${header} HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(NOT SHOAL_${name}_INCLUDE)
    message(STATUS "No ${header}: without ${without}")
    return()
  endif()
  set(SHOAL_${name} TRUE PARENT_SCOPE)
  string(TOLOWER shoal_${name}_headers target)
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE ${SHOAL_${name}_INCLUDE})
  target_link_libraries(${target} INTERFACE shoal_cuda_toolkit)
endfunction()

# The compute capability of this machine's first GPU, as CMake names architectures, or 90.
function(shoal_cuda_architecture result)
  set(architecture 90)
  find_program(SHOAL_NVIDIA_SMI nvidia-smi)
  if(SHOAL_NVIDIA_SMI)
    execute_process(COMMAND ${SHOAL_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE capabilities ERROR_QUIET TIMEOUT 20)
    if(capabilities MATCHES "^([0-9]+)\\.([0-9]+)")
      set(architecture ${CMAKE_MATCH_1}${CMAKE_MATCH_2})
    endif()
  endif()
  set(${result} ${architecture} PARENT_SCOPE)
endfunction()

set(with_cuda ${SHOAL_WITH_CUDA})
if(with_cuda STREQUAL "AUTO")
  file(GLOB gpu_devices /dev/nvidia[0-9]* /proc/driver/nvidia/version)
  if(gpu_devices)
    set(with_cuda ON)
  else()
    set(with_cuda OFF)
    message(STATUS "No NVIDIA GPU: without CUDA (SHOAL_WITH_CUDA=ON builds for it all the same)")
  endif()
endif()

if(with_cuda)
  include(CheckLanguage)
  if(SHOAL_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${SHOAL_CUDA_ARCHITECTURES})
  else()
    shoal_cuda_architecture(CMAKE_CUDA_ARCHITECTURES)
  endif()
  find_program(SHOAL_NVCC nvcc
    HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(SHOAL_NVCC)
    set(CMAKE_CUDA_COMPILER ${SHOAL_NVCC})
    check_language(CUDA)
  endif()
  if(SHOAL_NVCC AND CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    if(CUDAToolkit_FOUND AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8
       AND TARGET CUDA::cudart_static)
      set(SHOAL_CUDA TRUE)
    else()
      message(WARNING "CUDA toolkit ${CUDAToolkit_VERSION} is older than 12.8 or has no static "
        "runtime: without CUDA")
    endif()
  else()
    message(WARNING "No CUDA toolkit (nvcc): without CUDA")
  endif()
endif()

if(SHOAL_CUDA)
  # CMake 3.25 does not know that nvcc takes C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  # The toolkit's headers, as a system's: what host code needs to call the runtime.
  add_library(shoal_cuda_toolkit INTERFACE)
  target_include_directories(shoal_cuda_toolkit SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  add_library(shoal_cuda_runtime INTERFACE)
  target_link_libraries(shoal_cuda_runtime INTERFACE CUDA::cudart_static)
  # Without cuDNN attention runs on kernels of our own; without NCCL workers exchange nothing among
  # their GPUs.
  shoal_optional_header(CUDNN cudnn_graph.h "cuDNN's attention")
  shoal_optional_header(NCCL nccl.h "collectives between GPUs")
endif()

function(shoal_cuda_kernels name)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC shoal_cuda_toolkit)
  set_target_properties(${name} PROPERTIES
    CUDA_RUNTIME_LIBRARY Static CUDA_SEPARABLE_COMPILATION OFF)
  set(warnings -Xcompiler=-Wall,-Wextra,-Werror -Werror=all-warnings)
  target_compile_options(${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:${warnings};--expt-relaxed-constexpr>")

  set(wrappers)
  foreach(source ${ARG_SOURCES})
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/fake/${source}.cc)
    file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${path}\"\n")
    list(APPEND wrappers ${wrapper})
  endforeach()
  add_library(${name}_fake STATIC ${wrappers})
  target_link_libraries(${name}_fake PUBLIC shoal_flags shoal_fake_cuda)
  # An index that overflows ends the test. GPUs would go on with what is left of it.
  target_compile_options(${name}_fake PRIVATE
    -fsanitize=signed-integer-overflow -fsanitize-undefined-trap-on-error)
endfunction()
