# Compiler settings shared by every target, and fabric_library() which makes one of our folders.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # Paths below the tree count as relative ones, so that a clone in another folder finds what this one has compiled.
    set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
    set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

find_package(Threads REQUIRED)

add_library(fabric_options INTERFACE)
target_include_directories(fabric_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(fabric_options INTERFACE -Wall -Wextra
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-interference-size>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # g++ 12 sees overlaps in `"text" + std::to_string(n)` that are not there (GCC bug 105651).
    target_compile_options(fabric_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(CMAKE_UNITY_BUILD)
    # A file's own types are in an included file there; g++ takes that for a header which others include, too.
    target_compile_options(fabric_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()
target_link_libraries(fabric_options INTERFACE Threads::Threads)
if(FABRIC_WERROR)
    target_compile_options(fabric_options INTERFACE -Werror)
endif()
if(FABRIC_SANITIZE)
    # Global, so that nothing is built half with and half without.
    add_compile_options(-fsanitize=${FABRIC_SANITIZE} -fno-omit-frame-pointer)
    # As in other builds, where it is the compiler's default: a library that a program does not call is not loaded.
    # SentencePiece and protobuf in one process crash while they are loaded.
    add_link_options(-fsanitize=${FABRIC_SANITIZE} -Wl,--as-needed)
    # Time is no matter here: check.hpp.
    add_compile_definitions(FABRIC_DCHECKS)
endif()

# fabric_library(name SOURCES a.cpp ... LIBS fabric_x ...): a static library of one folder.
function(fabric_library name)
    cmake_parse_arguments(ARG "" "" "SOURCES;LIBS;PRIVATE_LIBS" ${ARGN})
    add_library(${name} STATIC ${ARG_SOURCES})
    target_link_libraries(${name} PUBLIC fabric_options ${ARG_LIBS} PRIVATE ${ARG_PRIVATE_LIBS})
endfunction()

# fabric_cold(target...): nothing in it is run often: command lines, files that are read once. Release
# builds spend half as long on it.
function(fabric_cold)
    foreach(target ${ARGN})
        target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
    endforeach()
endfunction()

# fabric_install(target...): programs and libraries that an installation has when they were built.
#   A build of single targets (scripts/demo) is installed as it is, and says what it lacks.
function(fabric_install)
    foreach(target ${ARGN})
        install(TARGETS ${target} OPTIONAL
            RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
        install(CODE "
            if(NOT EXISTS \"$<TARGET_FILE:${target}>\")
                message(STATUS \"Not built, left out: ${target} (cmake --build builds all)\")
            endif()")
    endforeach()
endfunction()

# fabric_completions(target word...): the completions of a program for bash, zsh and fish, printed by
# `target word... SHELL` whenever it is built, so that they have its options.
function(fabric_completions target)
    set(folder ${CMAKE_BINARY_DIR}/completions)
    file(MAKE_DIRECTORY ${folder})
    string(REPLACE ";" " " words "${ARGN}")
    set(files bash/${target} zsh/_${target} fish/${target}.fish)
    set(homes bash-completion/completions zsh/site-functions fish/vendor_completions.d)
    foreach(file home IN ZIP_LISTS files homes)
        get_filename_component(shell ${file} DIRECTORY)
        file(MAKE_DIRECTORY ${folder}/${shell})
        add_custom_command(TARGET ${target} POST_BUILD VERBATIM
            COMMAND sh -c "\"$1\" ${words} ${shell} > \"$2\"" sh $<TARGET_FILE:${target}> ${folder}/${file})
        install(FILES ${folder}/${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/${home} OPTIONAL)
    endforeach()
endfunction()
