// How fast are collectives over several hosts? A contender whose pools are joined by a network.

#include <fabricshm/fabricshm.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "bench/driver.hpp"

namespace {

// The library's own words, since a benchmark has no caller to return them to.
void need(int result, const char* step) {
    if (result == FABRICSHM_OK) return;
    bench::die(std::string(step) + ": " + fabricshm_error_text());
}

// An all-gather through files of a folder that all ranks have.
struct FileExchange {
    std::string folder;
    int rank;
    int world;
    int round = 0;

    std::string file_of(int which) const {
        return folder + "/" + std::to_string(round) + "." + std::to_string(which);
    }
    static int exchange(void* context, const void* mine, std::size_t bytes, void* all) {
        auto& self = *static_cast<FileExchange*>(context);
        const std::string own = self.file_of(self.rank);
        std::ofstream(own + ".new", std::ios::binary)
            .write(static_cast<const char*>(mine), static_cast<std::streamsize>(bytes));
        std::filesystem::rename(own + ".new", own);
        for (int rank = 0; rank < self.world; ++rank) {
            while (!std::filesystem::exists(self.file_of(rank))) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            std::ifstream(self.file_of(rank), std::ios::binary)
                .read(static_cast<char*>(all) + static_cast<std::size_t>(rank) * bytes,
                      static_cast<std::streamsize>(bytes));
        }
        ++self.round;
        return 0;
    }
};

class HostsContender final : public bench::Contender {
  public:
    HostsContender(const std::string& socket, const std::string& arena, FileExchange exchange) {
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = socket.c_str();
        need(fabricshm_session_open(&options, &session_), "open session");
        need(fabricshm_arena_open(session_, arena.c_str(), 1ull << 30, 0, &arena_), "open arena");
        fabricshm_hosts_spec spec{};
        spec.struct_size = sizeof spec;
        spec.name = "bench";
        spec.rank = exchange.rank;
        spec.world = exchange.world;
        spec.exchange = &FileExchange::exchange;
        spec.context = &exchange;
        spec.timeout_ms = FABRICSHM_TIMEOUT_DEFAULT;
        need(fabricshm_group_join_hosts(arena_, &spec, &group_), "join");
    }
    ~HostsContender() override { fabricshm_session_close(session_); }

    int rank() const override { return fabricshm_group_rank(group_); }
    int world() const override { return fabricshm_group_world(group_); }
    std::string version() const override {
        return std::string("fabric ") + fabricshm_version() + " over hosts";
    }
    std::string refuses(const bench::Case& wanted) const override {
        if (wanted.collective != bench::Collective::kAllreduce) return "allreduce only";
        if (wanted.place == bench::Place::kShared) return "no shared result";
        return wanted.algorithm == "auto" ? "" : "no algorithms";
    }
    void* allocate(bench::Memory memory, std::size_t bytes) override {
        if (memory == bench::Memory::kHeap) return Contender::allocate(memory, bytes);
        void* block = fabricshm_alloc(arena_, bytes);
        if (block == nullptr) bench::die(fabricshm_error_text());
        return block;
    }
    void release(bench::Memory memory, void* block, std::size_t bytes) override {
        if (memory == bench::Memory::kHeap) return Contender::release(memory, block, bytes);
        fabricshm_free(arena_, block);
    }
    void prepare(const bench::Case&, const std::vector<bench::Buffers>& pairs) override {
        pairs_ = pairs;
    }
    void run(std::size_t pair) override {
        const bench::Buffers& b = pairs_[pair];
        const float* input = b.input == nullptr ? b.output : b.input;
        need(fabricshm_allreduce(group_, input, b.output, b.output_count, FABRICSHM_F32,
                                 FABRICSHM_SUM),
             "allreduce");
    }
    void barrier() override { need(fabricshm_barrier(group_), "barrier"); }

  private:
    fabricshm_session* session_ = nullptr;
    fabricshm_arena* arena_ = nullptr;
    fabricshm_group* group_ = nullptr;
    std::vector<bench::Buffers> pairs_;
};

}  // namespace

int main(int argc, char** argv) {
    FileExchange exchange{bench::option(argc, argv, "--exchange"),
                          std::stoi(bench::option(argc, argv, "--rank")),
                          std::stoi(bench::option(argc, argv, "--world"))};
    HostsContender contender(bench::option(argc, argv, "--socket"),
                             bench::option(argc, argv, "--arena"), exchange);
    return bench::serve(contender, bench::option(argc, argv, "--control"),
                        bench::option(argc, argv, "--name"));
}
