# Finding PyTorch, and what happens without it.

# Says that the backend is not built: an error with FABRIC_BUILD_TORCH=ON, a warning with AUTO.
function(fabric_without_torch why)
    if(FABRIC_BUILD_TORCH STREQUAL "AUTO")
        message(WARNING "fabricshm.torch is not built: ${why} (FABRIC_BUILD_TORCH=OFF to leave it out)")
    else()
        message(FATAL_ERROR "fabricshm.torch can't be built: ${why} (FABRIC_BUILD_TORCH=OFF to leave it out)")
    endif()
endfunction()

# Sets FABRIC_TORCH_FACTS to version;abi;includes;libraries of the PyTorch that Python3_EXECUTABLE imports,
# or to nothing. find_package(Torch) takes 13 s and brings CUDA; torch itself knows where its parts are.
function(fabric_torch_facts)
    if(FABRIC_TORCH_FACTS)
        return()
    endif()
    execute_process(
        COMMAND ${Python3_EXECUTABLE} -c
            "import torch, torch.utils.cpp_extension as e; print(';'.join([torch.__version__, str(int(torch._C._GLIBCXX_USE_CXX11_ABI)), '|'.join(e.include_paths()), '|'.join(e.library_paths())]))"
        OUTPUT_VARIABLE facts OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
        RESULT_VARIABLE missing)
    if(NOT missing EQUAL 0)
        fabric_without_torch("${Python3_EXECUTABLE} does not import torch")
        return()
    endif()
    set(FABRIC_TORCH_FACTS "${facts}" CACHE INTERNAL "version;abi;includes;libraries")
endfunction()

# Sets FABRIC_TORCH_INCLUDE, FABRIC_TORCH_API_INCLUDE and FABRIC_<library>_LIBRARY to the parts of that PyTorch, and
# torch_libraries to a list of the libraries. Debian's libtorch-dev has the headers in /usr/include, a wheel has them
# next to its libraries. As hints: both may be installed, and what belongs to the torch that is imported comes first.
macro(fabric_torch_parts)
    list(GET FABRIC_TORCH_FACTS 2 torch_includes)
    list(GET FABRIC_TORCH_FACTS 3 torch_library_paths)
    string(REPLACE "|" ";" torch_includes "${torch_includes}")
    string(REPLACE "|" ";" torch_library_paths "${torch_library_paths}")
    find_path(FABRIC_TORCH_INCLUDE torch/extension.h HINTS ${torch_includes} PATHS /usr/include)
    find_path(FABRIC_TORCH_API_INCLUDE torch/torch.h
              HINTS ${torch_includes} PATHS /usr/include/torch/csrc/api/include
              PATH_SUFFIXES torch/csrc/api/include)
    set(torch_libraries)
    foreach(library c10 torch torch_cpu torch_python)
        find_library(FABRIC_${library}_LIBRARY ${library} HINTS ${torch_library_paths})
        list(APPEND torch_libraries ${FABRIC_${library}_LIBRARY})
    endforeach()
endmacro()
