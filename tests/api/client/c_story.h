/* What a C program does with the library, for a test written in C++. */
#ifndef TESTS_API_CLIENT_C_STORY_H
#define TESTS_API_CLIENT_C_STORY_H

#ifdef __cplusplus
extern "C" {
#endif

/* Attaches at `socket` and uses everything but groups. NULL when all went well, or what did not. */
const char* c_story(const char* socket);

#ifdef __cplusplus
}
#endif

#endif
