/* Uses the installed library without a daemon: what it says of itself, and a failure that is clear.
 */
#include <fabricshm/fabricshm.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    /* By name: the structure grows at its end. */
    fabricshm_session_options options = {.struct_size = sizeof options,
                                         .socket = "/nonexistent/attach.sock",
                                         .timeout_ms = 1000,
                                         .label = "test"};
    fabricshm_session* session = NULL;
    if (fabricshm_version()[0] == '\0') return 1;
    if (strcmp(fabricshm_error_name(FABRICSHM_EPEER), "FABRICSHM_EPEER") != 0) return 2;
    if (fabricshm_dtype_size(FABRICSHM_BF16) != 2) return 3;
    if (fabricshm_session_open(&options, &session) != FABRICSHM_EDAEMON) return 4;
    if (session != NULL) return 5;
    if (strstr(fabricshm_error_text(), "/nonexistent/attach.sock") == NULL) return 6;
    printf("%s: %s\n", fabricshm_version(), fabricshm_error_text());
    return 0;
}
