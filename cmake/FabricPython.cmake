# Which Python everything uses: Debian's own, whose packages we depend on, not the first one in PATH.
if(NOT Python3_EXECUTABLE AND EXISTS /usr/bin/python3)
    set(Python3_EXECUTABLE /usr/bin/python3 CACHE FILEPATH "The Python of tests, lints and modules")
endif()
