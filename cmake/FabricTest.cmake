# fabric_test(kind path LIBS ... [LABELS ...] [TIMEOUT s] [SOURCES ...] [ARGS ...] [APART])
#   A file of tests and its ctest test: `fabric_test(unit shm/ring LIBS fabric_shm)` compiles
#   tests/unit/shm/ring_test.cpp and registers `unit.shm.ring`. The unit tests of a folder are one
#   program, test_unit_shm, of which each ctest test runs one file: linked once. All others, and those
#   that are APART because they bring sources or flags that would reach their neighbours, are a
#   program each: test_multiproc_client_groups.
#   Exit code 77 means skipped; FABRIC_TESTS_FAIL_ON_SKIP=1 turns that into a failure.
function(fabric_test kind path)
    cmake_parse_arguments(ARG "APART" "TIMEOUT" "LIBS;LABELS;SOURCES;ARGS;DEFINES" ${ARGN})
    string(REPLACE "/" "." dotted ${path})
    string(REPLACE "/" "_" flat ${path})
    string(REPLACE "/" ";" parts ${path})
    list(GET parts 0 folder)
    set(target test_${kind}_${flat})
    set(command ${target})
    if(kind STREQUAL unit AND NOT ARG_APART)
        set(target test_${kind}_${folder})
        set(command ${target} --source-file=*/${kind}/${path}_test.cpp)
    endif()
    set_property(GLOBAL PROPERTY fabric_test_${kind}.${dotted} ${command})
    if(NOT TARGET ${target})
        add_executable(${target})
        target_link_libraries(${target} PRIVATE fabric_options fabric_test_support)
        if(FABRIC_TEST_PRECOMPILED AND NOT ARG_SOURCES MATCHES "[.]c(;|$)")  # there is none for C
            target_precompile_headers(${target} REUSE_FROM fabric_test_precompiled)
            # g++ 12 sees overflows in std::string that are not there when it comes from such a header.
            target_compile_options(${target} PRIVATE -Wno-error=stringop-overflow
                -Wno-error=stringop-overread -Wno-error=array-bounds -Wno-error=maybe-uninitialized)
        endif()
    endif()
    target_sources(${target} PRIVATE ${CMAKE_SOURCE_DIR}/tests/${kind}/${path}_test.cpp ${ARG_SOURCES})
    target_link_libraries(${target} PRIVATE ${ARG_LIBS})
    target_compile_definitions(${target} PRIVATE ${ARG_DEFINES})
    if(NOT ARG_TIMEOUT)
        set(ARG_TIMEOUT 120)
        if(FABRIC_SANITIZE)  # the thread sanitizer makes some of them twenty times slower
            set(ARG_TIMEOUT 900)
        endif()
    endif()
    # scripts/test builds one kind, or one folder of it, at a time with the sanitizers: `tests_unit`, `tests_unit_shm`, ...
    foreach(all tests_${kind} tests_${kind}_${folder})
        if(NOT TARGET ${all})
            add_custom_target(${all})
        endif()
        add_dependencies(${all} ${target})
    endforeach()
    add_test(NAME ${kind}.${dotted} COMMAND ${command} ${ARG_ARGS})
    set_tests_properties(${kind}.${dotted} PROPERTIES
        LABELS "${kind};${folder};${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77)
endfunction()

# fabric_test_on_hosts(kind path hosts [TIMEOUT s] [LABELS ...] [ARGS ...])
#   The test kind.path once more with its ranks on emulated hosts that share no caches: "2", "4" or
#   "4:strict", see tests/support/ranks.hpp. For every test that is made of failures_in_threads(),
#   failures_in_processes() or TestArena. Registers `emu.hosts2.collective.group` and the like.
function(fabric_test_on_hosts kind path hosts)
    cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS;ARGS" ${ARGN})
    string(REPLACE "/" "." dotted ${path})
    string(REPLACE ":" "." name hosts${hosts})
    get_property(command GLOBAL PROPERTY fabric_test_${kind}.${dotted})
    if(NOT ARG_TIMEOUT)
        set(ARG_TIMEOUT 300)
    endif()
    add_test(NAME emu.${name}.${dotted} COMMAND ${command} ${ARG_ARGS})
    set_tests_properties(emu.${name}.${dotted} PROPERTIES LABELS "emu;hosts;${ARG_LABELS}"
        TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77 ENVIRONMENT FABRIC_TEST_HOSTS=${hosts})
endfunction()

# fabric_test_on_tree(kind path [TIMEOUT s] [LABELS ...] [ARGS ...])
#
# An existing test of fabric_test() once more, with groups that have a tree from two ranks on:
# TestArena of tests/support/ranks.hpp reads FABRIC_TEST_TREE.
function(fabric_test_on_tree kind path)
    cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS;ARGS" ${ARGN})
    string(REPLACE "/" "." dotted ${path})
    get_property(command GLOBAL PROPERTY fabric_test_${kind}.${dotted})
    if(NOT ARG_TIMEOUT)
        set(ARG_TIMEOUT 300)
    endif()
    add_test(NAME ${kind}.tree.${dotted} COMMAND ${command} ${ARG_ARGS})
    set_tests_properties(${kind}.tree.${dotted} PROPERTIES LABELS "${kind};collective;${ARG_LABELS}"
        TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77 ENVIRONMENT FABRIC_TEST_TREE=2)
endfunction()
