# What the Python module and the PyTorch backend share: where files go in the build tree
# (PYTHONPATH=build/<preset>/python) and when installed.
find_package(Python3 COMPONENTS Interpreter Development.Module)
set(FABRIC_PYTHON_DIR ${CMAKE_BINARY_DIR}/python)

# Debian's Python looks into dist-packages, of another version's folder under /usr/local.
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    set(fabric_python_default lib/python3/dist-packages)
else()
    set(fabric_python_default
        lib/python${Python3_VERSION_MAJOR}.${Python3_VERSION_MINOR}/dist-packages)
endif()
set(FABRIC_PYTHON_INSTALL_DIR ${fabric_python_default} CACHE STRING
    "Where Python packages are installed, relative to the prefix")

# fabric_python_module(target package name): builds target as the extension `package/name`.
function(fabric_python_module target package name)
    file(RELATIVE_PATH to_lib /${FABRIC_PYTHON_INSTALL_DIR}/${package} /${CMAKE_INSTALL_LIBDIR})
    file(RELATIVE_PATH to_wheel_lib /${package} /fabricshm.libs)  # scripts/wheel
    set_target_properties(${target} PROPERTIES
        OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${FABRIC_PYTHON_DIR}/${package}
        INSTALL_RPATH "$ORIGIN/${to_lib};$ORIGIN/${to_wheel_lib}")
    target_link_libraries(${target} PRIVATE fabric_options)
    target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR}/libfabricshm/include)
    if(TARGET fabricshm)
        target_link_libraries(${target} PRIVATE fabricshm)
    endif()
    install(TARGETS ${target} OPTIONAL LIBRARY DESTINATION ${FABRIC_PYTHON_INSTALL_DIR}/${package})
endfunction()

# fabric_python_program(name): configures name.in, which finds its packages at FABRIC_PACKAGES, into a
# program: next to the packages in the build tree, in bin/ when installed.
function(fabric_python_program name)
    set(modes OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
    set(FABRIC_PACKAGES .)
    configure_file(${name}.in ${FABRIC_PYTHON_DIR}/${name} @ONLY FILE_PERMISSIONS ${modes})
    file(RELATIVE_PATH FABRIC_PACKAGES /${CMAKE_INSTALL_BINDIR} /${FABRIC_PYTHON_INSTALL_DIR})
    configure_file(${name}.in ${CMAKE_CURRENT_BINARY_DIR}/install/${name} @ONLY
        FILE_PERMISSIONS ${modes})
    install(PROGRAMS ${CMAKE_CURRENT_BINARY_DIR}/install/${name}
        DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# fabric_python_completions(name source...): as fabric_completions(), of a program made by
#   fabric_python_program(); made again when a source has changed.
function(fabric_python_completions name)
    set(folder ${CMAKE_BINARY_DIR}/completions)
    set(files bash/${name} zsh/_${name} fish/${name}.fish)
    set(homes bash-completion/completions zsh/site-functions fish/vendor_completions.d)
    set(made "")
    foreach(file home IN ZIP_LISTS files homes)
        get_filename_component(shell ${file} DIRECTORY)
        file(MAKE_DIRECTORY ${folder}/${shell})
        add_custom_command(OUTPUT ${folder}/${file} DEPENDS ${ARGN} VERBATIM
            COMMAND sh -c "\"$1\" -B \"$2\" --completion ${shell} > \"$3\"" sh
                    ${Python3_EXECUTABLE} ${FABRIC_PYTHON_DIR}/${name} ${folder}/${file})
        list(APPEND made ${folder}/${file})
        install(FILES ${folder}/${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/${home} OPTIONAL)
    endforeach()
    add_custom_target(${name}_completions ALL DEPENDS ${made})
endfunction()

# fabric_python_files(package file...): Python files, as links in the build tree so that an edit
# needs no build.
function(fabric_python_files package)
    file(MAKE_DIRECTORY ${FABRIC_PYTHON_DIR}/${package})
    foreach(file ${ARGN})
        get_filename_component(name ${file} NAME)
        file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/${file} ${FABRIC_PYTHON_DIR}/${package}/${name}
             SYMBOLIC)
        install(FILES ${file} DESTINATION ${FABRIC_PYTHON_INSTALL_DIR}/${package})
    endforeach()
endfunction()
