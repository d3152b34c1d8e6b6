# The only ways that this project declares a target.

add_library(forebay_warnings INTERFACE)
target_compile_options(forebay_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor)
if(FOREBAY_WERROR)
  # gcc 12 is often wrong about the first three (GCC bugs 105593, 105651, 105329), and wants every
  # field of a designated initializer by the last.
  target_compile_options(forebay_warnings INTERFACE -Werror
    -Wno-error=maybe-uninitialized -Wno-error=restrict -Wno-error=stringop-overflow
    -Wno-error=missing-field-initializers)
endif()

if(FOREBAY_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(FOREBAY_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  # RPATH: unlike RUNPATH it also decides which Abseil gRPC runs with; see abseil_for_tsan.sh.
  add_link_options(LINKER:--disable-new-dtags)
endif()

if(FOREBAY_FUZZ)
  # Every object feeds the fuzzer; only the fuzz targets link its main, with -fsanitize=fuzzer.
  add_compile_options(-fsanitize=fuzzer-no-link)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()
if(FOREBAY_FAILPOINTS)
  add_compile_definitions(FOREBAY_FAILPOINTS=1)
endif()
if(FOREBAY_BREAK)
  add_compile_definitions(FOREBAY_BREAK_RUNTIME="${FOREBAY_BREAK}")  # base/broken.h
endif()

# forebay_library(NAME HEADERS … SOURCES … DEPS … TESTS … LABELS …)
# A static library forebay::NAME; each TESTS file becomes a GoogleTest program with a ctest entry
# NAME.<stem>. A test may not run for more than 60 seconds.
function(forebay_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS;SOURCES;DEPS;TESTS;LABELS;TEST_DEPS")
  set(target forebay_${name})
  if(arg_SOURCES)
    add_library(${target} STATIC ${arg_SOURCES})
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(${target} PUBLIC ${arg_DEPS} PRIVATE forebay_warnings)
    target_sources(${target} PUBLIC FILE_SET HEADERS
      BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${arg_HEADERS})
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${target} INTERFACE ${arg_DEPS})
  endif()
  add_library(forebay::${name} ALIAS ${target})
  if(FOREBAY_TESTS)
    foreach(source IN LISTS arg_TESTS)
      forebay_test(${name} ${source} DEPS forebay::${name} ${arg_TEST_DEPS} LABELS unit ${arg_LABELS})
    endforeach()
  endif()
endfunction()

# forebay_test(GROUP SOURCE DEPS … LABELS … TIMEOUT seconds ARGS …)
function(forebay_test group source)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "TIMEOUT" "DEPS;LABELS;ARGS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 60)
  endif()
  if(FOREBAY_SANITIZE STREQUAL "thread")
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 15")
  elseif(FOREBAY_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 4")
  endif()
  cmake_path(GET source STEM test)
  add_executable(${group}_${test} ${source})
  # Only for those that ask: an absolute path on the command line is another compilation for ccache.
  file(STRINGS ${source} asks_for_paths REGEX "FOREBAY_(SOURCE|BINARY)_DIR" LIMIT_COUNT 1)
  if(asks_for_paths)
    target_compile_definitions(${group}_${test} PRIVATE
      FOREBAY_SOURCE_DIR="${PROJECT_SOURCE_DIR}" FOREBAY_BINARY_DIR="${PROJECT_BINARY_DIR}")
  endif()
  target_link_libraries(${group}_${test} PRIVATE
    ${arg_DEPS} forebay::testing GTest::gmock_main forebay_warnings)
  add_test(NAME ${group}.${test} COMMAND ${group}_${test} ${arg_ARGS})
  set_tests_properties(${group}.${test} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()

# forebay_program(NAME SOURCES … DEPS …): an executable in build/bin.
function(forebay_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;DEPS")
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} forebay_warnings)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()
