# runtime_player.cpp, linked to the CUDA runtime that find_package(CUDAToolkit) has found.
#
# Its kernel needs an nvcc that gets on with this host compiler: tried once for each two of them, left
# out otherwise.
set(kernel_object ${CMAKE_CURRENT_BINARY_DIR}/runtime_kernel.o)
set(compile_kernel ${CUDAToolkit_NVCC_EXECUTABLE} -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler -fPIE
    -c ${CMAKE_CURRENT_SOURCE_DIR}/runtime_kernel.cu -o ${kernel_object})
# With their versions: an upgrade leaves the paths as they are.
string(JOIN " " nvcc_and_compiler "${CUDAToolkit_NVCC_EXECUTABLE}" "${CUDAToolkit_VERSION}"
       "${CMAKE_CXX_COMPILER}" "${CMAKE_CXX_COMPILER_VERSION}")
if(CUDAToolkit_NVCC_EXECUTABLE AND NOT "${FABRIC_NVCC_TRIED}" STREQUAL "${nvcc_and_compiler}")
    execute_process(COMMAND ${compile_kernel} RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    set(FABRIC_NVCC_FAILS ${failed} CACHE INTERNAL "0: nvcc compiles with this host compiler")
    set(FABRIC_NVCC_TRIED "${nvcc_and_compiler}" CACHE INTERNAL "what FABRIC_NVCC_FAILS is about")
endif()
if(CUDAToolkit_NVCC_EXECUTABLE AND FABRIC_NVCC_FAILS STREQUAL "0")
    set(has_kernel 1)
    add_custom_command(OUTPUT ${kernel_object} COMMAND ${compile_kernel} VERBATIM
        DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/runtime_kernel.cu)
else()
    set(kernel_object "")
endif()

foreach(runtime cudart cudart_static)
    if(NOT TARGET CUDA::${runtime})
        continue()
    endif()
    set(player fabric_${runtime}_player)
    add_executable(${player} EXCLUDE_FROM_ALL runtime_player.cpp ${kernel_object})
    target_link_libraries(${player} PRIVATE fabric_options CUDA::${runtime})
    target_compile_definitions(${player} PRIVATE FABRIC_HAS_KERNEL=${has_kernel})
    add_dependencies(fabric_gpu_stage ${player})
    string(APPEND runtime_programs "$<TARGET_FILE:${player}>,")
endforeach()
