// How fast small files are opened, looked at, read and closed: each file of FOLDER once, in the
// order of their names, after a pass that is not counted. Prints files a second, and microseconds
// of the median and the slowest file, as JSON. With `cold` the kernel drops each file's pages
// behind the read. bench/mount_files.py compares a mount of fabric-mount with the folder behind it.

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& what) {
    std::perror(("mount_files: " + what).c_str());
    std::exit(1);
}

std::vector<std::string> files_of(const std::string& folder) {
    DIR* const stream = ::opendir(folder.c_str());
    if (stream == nullptr) fail(folder);
    std::vector<std::string> files;
    while (const dirent* const entry = ::readdir(stream)) {
        if (entry->d_name[0] != '.') files.push_back(folder + "/" + entry->d_name);
    }
    ::closedir(stream);
    std::sort(files.begin(), files.end());
    return files;
}

void read_file(const std::string& path, std::vector<char>& room, bool cold) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (file < 0 || ::fstat(file, &status) != 0) fail(path);
    const auto bytes = static_cast<std::size_t>(status.st_size);
    if (room.size() < bytes) room.resize(bytes);
    if (::read(file, room.data(), bytes) != static_cast<ssize_t>(bytes)) fail(path);
    if (cold) ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: bench_mount_files FOLDER [PASSES [cold]]\n");
        return 2;
    }
    const auto files = files_of(argv[1]);
    const int passes = argc > 2 ? std::max(1, std::atoi(argv[2])) : 1;
    const bool cold = argc > 3 && std::strcmp(argv[3], "cold") == 0;
    if (files.empty()) fail("no files");
    std::vector<char> room;
    for (const auto& file : files) read_file(file, room, cold);
    std::vector<double> times;
    const auto begin = Clock::now();
    for (int pass = 0; pass < passes; ++pass) {
        for (const auto& file : files) {
            const auto began = Clock::now();
            read_file(file, room, cold);
            times.push_back(
                std::chrono::duration<double, std::micro>(Clock::now() - began).count());
        }
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    std::sort(times.begin(), times.end());
    std::printf("{\"files_per_s\": %.1f, \"median_us\": %.2f, \"longest_us\": %.1f}\n",
                static_cast<double>(times.size()) / seconds, times[times.size() / 2], times.back());
    return 0;
}
