# The kernels of native/device/kernels/kernels.cu: as text for NVRTC, and compiled for these GPUs if
# nvcc is found. A binary also runs on GPUs with the same first digits and a higher last digit (80 on
# 86 and 89); NVRTC compiles for all others.
set(HVDTUNE_GPU_ARCHITECTURES 80 90 100)
option(HVDTUNE_BUILD_CUDA "Compile the GPU kernels if nvcc is found" ON)

set(HVDTUNE_KERNELS ${CMAKE_CURRENT_SOURCE_DIR}/native/device/kernels/kernels.cu)
set(HVDTUNE_KERNEL_WORK ${CMAKE_CURRENT_SOURCE_DIR}/native/device/kernels/kernel_work.h)
set(HVDTUNE_FATBIN ${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin)
set(HVDTUNE_HAS_FATBIN 0)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  ${HVDTUNE_KERNELS} ${HVDTUNE_KERNEL_WORK})

# NVRTC gets a single text.
file(READ ${HVDTUNE_KERNELS} HVDTUNE_KERNELS_TEXT)
file(READ ${HVDTUNE_KERNEL_WORK} work)
string(REPLACE "#pragma once" "" work "${work}")
string(REPLACE "#include \"device/kernels/kernel_work.h\"" "${work}" HVDTUNE_KERNELS_TEXT
  "${HVDTUNE_KERNELS_TEXT}")

if(HVDTUNE_BUILD_CUDA)
  find_program(HVDTUNE_NVCC nvcc PATHS ENV CUDA_HOME PATH_SUFFIXES bin)
endif()
if(HVDTUNE_BUILD_CUDA AND HVDTUNE_NVCC)
  set(targets)
  foreach(number ${HVDTUNE_GPU_ARCHITECTURES})
    list(APPEND targets -gencode arch=compute_${number},code=sm_${number})
  endforeach()
  if(${HVDTUNE_KERNELS} IS_NEWER_THAN ${HVDTUNE_FATBIN} OR
     ${HVDTUNE_KERNEL_WORK} IS_NEWER_THAN ${HVDTUNE_FATBIN})
    execute_process(
      COMMAND ${HVDTUNE_NVCC} -std=c++17 -O3 -fatbin --threads 0 ${targets}
        -I ${CMAKE_CURRENT_SOURCE_DIR}/native -o ${HVDTUNE_FATBIN} ${HVDTUNE_KERNELS}
      RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(failed)
      file(REMOVE ${HVDTUNE_FATBIN})
      # This nvcc is too old, or finds no host compiler: NVRTC compiles the kernels then.
      message(STATUS "GPU kernels: ${HVDTUNE_NVCC} cannot compile them: ${said}")
    endif()
  endif()
  if(EXISTS ${HVDTUNE_FATBIN})
    message(STATUS "GPU kernels: compiled by ${HVDTUNE_NVCC}")
    set(HVDTUNE_HAS_FATBIN 1)
  endif()
else()
  message(STATUS "GPU kernels: no nvcc, NVRTC compiles them at run time")
endif()

set(HVDTUNE_KERNELS_SOURCE ${CMAKE_CURRENT_BINARY_DIR}/kernels_source.cc)
configure_file(native/device/kernels/kernels_source.cc.in ${HVDTUNE_KERNELS_SOURCE} @ONLY)
if(HVDTUNE_HAS_FATBIN)
  set_source_files_properties(${HVDTUNE_KERNELS_SOURCE} PROPERTIES OBJECT_DEPENDS ${HVDTUNE_FATBIN})
endif()
