/* How many lines have the files of a folder of the data cache? Each is read where it lies in the
 * pool, without a copy.
 *
 *   cc -o data data.c $(pkg-config --cflags --libs fabricshm)
 *   ./data /texts
 */
#include <fabricshm/data.h>
#include <stdio.h>

/* Of one file; a view shows one chunk of it. */
static int count_lines(fabricshm_data_set* set, uint64_t index, uint64_t bytes, uint64_t* lines) {
    fabricshm_data_view view;
    for (uint64_t at = 0; at < bytes; at += view.length) {
        const int code = fabricshm_data_acquire(set, index, at, FABRICSHM_TIMEOUT_DEFAULT, &view);
        if (code != 0) return code;
        for (uint64_t i = 0; i < view.length; ++i) *lines += ((const char*)view.bytes)[i] == '\n';
        fabricshm_data_release(set, &view);
    }
    return 0;
}

int main(int argc, char** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: data PATH\n");
        return 2;
    }
    fabricshm_data* data = NULL;
    fabricshm_data_set* set = NULL;
    uint64_t lines = 0;
    int code = fabricshm_data_open(NULL, NULL, &data);
    if (code == 0)
        code = fabricshm_data_list(data, argv[1], FABRICSHM_DATA_RECURSIVE,
                                   FABRICSHM_TIMEOUT_DEFAULT, &set);
    for (uint64_t i = 0; code == 0 && i < fabricshm_data_set_count(set); ++i) {
        fabricshm_data_entry entry = {.struct_size = sizeof entry};
        code = fabricshm_data_set_entry(set, i, &entry);
        if (code == 0) code = count_lines(set, i, entry.bytes, &lines);
    }
    if (code != 0) fprintf(stderr, "data: %s\n", fabricshm_error_text());
    if (code == 0) printf("%llu lines\n", (unsigned long long)lines);
    fabricshm_data_set_close(set);
    fabricshm_data_close(data);
    return code != 0;
}
