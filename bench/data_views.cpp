// How long does a reader of the data cache take for a file of 28 KiB that is in the pool: to view
// it, to copy it, next to memcpy from a memfd that is mapped anyway and to open + pread + close of
// the same file in the page cache? All in turn, some rounds; prints each round as JSON.
// bench/data_views.py starts the service and compares.

#include <fabricshm/data.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kTimeout = FABRICSHM_TIMEOUT_DEFAULT;

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "data_views: %s: %s\n", what, fabricshm_error_text());
    std::exit(1);
}

struct Cost {
    double wall_ns = 0;
    double processor_ns = 0;  // of this thread
};

double processor_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

template <typename Work>
Cost measure(std::size_t repeats, Work&& work) {
    const double processor = processor_ns();
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < repeats; ++i) work(i);
    const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - begin;
    const auto count = static_cast<double>(repeats);
    return {wall.count() / count, (processor_ns() - processor) / count};
}

// The compiler must not leave out what is read.
void use(const void* bytes) {
    asm volatile("" : : "r"(bytes) : "memory");
}

void print(const char* name, const Cost& cost, const char* end) {
    std::printf("\"%s\": {\"ns\": %.2f, \"processor_ns\": %.2f}%s", name, cost.wall_ns,
                cost.processor_ns, end);
}

class Bench {
  public:
    Bench(fabricshm_data_set* set, std::string folder) : set_(set), folder_(std::move(folder)) {
        count_ = fabricshm_data_set_count(set);
        for (std::uint64_t i = 0; i < count_; ++i) {
            fabricshm_data_entry entry{};
            entry.struct_size = sizeof entry;
            if (fabricshm_data_set_entry(set, i, &entry) != 0) fail("entry");
            names_.emplace_back(folder_ + "/" + std::string(entry.name, entry.name_bytes));
            bytes_ = entry.bytes;
        }
        if (count_ == 0 || bytes_ > FABRICSHM_DATA_CHUNK) fail("needs files of one chunk");
        into_.resize(bytes_);
        const int file = ::memfd_create("data_views", MFD_CLOEXEC);
        if (::ftruncate(file, static_cast<off_t>(bytes_ * count_)) != 0) fail("no memory");
        void* const memory = ::mmap(nullptr, bytes_ * count_, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_POPULATE, file, 0);
        if (memory == MAP_FAILED) fail("no memory");
        memory_ = static_cast<char*>(memory);
        for (std::uint64_t i = 0; i < count_; ++i) view(i);  // what is not in the pool comes
    }

    void round(std::size_t repeats) {
        const Cost viewed = measure(40 * repeats, [this](std::size_t i) { view(i); });
        const Cost copied = measure(repeats, [this](std::size_t i) {
            std::uint64_t got = 0;
            if (fabricshm_data_read(set_, i % count_, 0, into_.data(), bytes_, kTimeout, &got) != 0)
                fail("read");
            use(into_.data());
        });
        const Cost moved = measure(repeats, [this](std::size_t i) {
            std::memcpy(into_.data(), memory_ + i % count_ * bytes_, bytes_);
            use(into_.data());
        });
        const Cost read = measure(repeats, [this](std::size_t i) { read_file(i); });
        std::printf("{");
        print("view", viewed, ", ");
        print("copy", copied, ", ");
        print("memcpy", moved, ", ");
        print("pread", read, "}\n");
    }

  private:
    void view(std::size_t i) {
        fabricshm_data_view view;
        if (fabricshm_data_acquire(set_, i % count_, 0, kTimeout, &view) != 0) fail("view");
        use(view.bytes);
        fabricshm_data_release(set_, &view);
    }

    void read_file(std::size_t i) {
        const int file = ::open(names_[i % count_].c_str(), O_RDONLY | O_CLOEXEC);
        if (::pread(file, into_.data(), bytes_, 0) != static_cast<ssize_t>(bytes_)) fail("pread");
        ::close(file);
        use(into_.data());
    }

    fabricshm_data_set* set_;
    std::string folder_;
    std::uint64_t count_ = 0;
    std::uint64_t bytes_ = 0;
    std::vector<std::string> names_;
    std::vector<char> into_;
    char* memory_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: bench_data_views PATH FOLDER REPEATS ROUNDS\n");
        return 2;
    }
    fabricshm_data* data = nullptr;
    fabricshm_data_set* set = nullptr;
    if (fabricshm_data_open(nullptr, nullptr, &data) != 0) fail("open");
    if (fabricshm_data_list(data, argv[1], 0, kTimeout, &set) != 0) fail("list");
    Bench bench(set, argv[2]);
    for (int round = 0; round < std::atoi(argv[4]); ++round) {
        bench.round(static_cast<std::size_t>(std::atoll(argv[3])));
    }
    fabricshm_data_set_close(set);
    fabricshm_data_close(data);
    return 0;
}
