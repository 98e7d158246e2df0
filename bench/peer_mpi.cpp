// How fast is an MPI library at the collectives? Built once with OpenMPI and once with MPICH.

#include <mpi.h>

#include "bench/driver.hpp"

namespace {

class MpiContender final : public bench::Contender {
  public:
    MpiContender() {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        MPI_Comm_size(MPI_COMM_WORLD, &world_);
    }

    int rank() const override { return rank_; }
    int world() const override { return world_; }

    std::string version() const override {
        char text[MPI_MAX_LIBRARY_VERSION_STRING];
        int length = 0;
        MPI_Get_library_version(text, &length);
        const std::string all(text, static_cast<std::size_t>(length));
        // Libraries fill the rest with build dates and copyrights.
        const std::size_t end = all.find_first_of(",\n");
        return all.substr(0, end);
    }

    std::string refuses(const bench::Case& wanted) const override {
        if (wanted.memory == bench::Memory::kArena) return "no arena";
        if (wanted.place == bench::Place::kShared) return "no shared result";
        // The setting is in the environment or on the launcher's command line, before MPI_Init().
        return wanted.algorithm == "auto" ? "" : "algorithms are chosen by settings";
    }

    void prepare(const bench::Case& wanted, const std::vector<bench::Buffers>& pairs) override {
        case_ = wanted;
        pairs_ = pairs;
    }

    void run(std::size_t pair) override {
        const bench::Buffers& b = pairs_[pair];
        const bool in_place = case_.place == bench::Place::kIn;
        // The same for all four that have it: MPI finds the input in the output then.
        void* input = in_place ? MPI_IN_PLACE : b.input;
        switch (case_.collective) {
            case bench::Collective::kAllreduce:
                MPI_Allreduce(input, b.output, static_cast<int>(b.output_count), MPI_FLOAT, MPI_SUM,
                              MPI_COMM_WORLD);
                break;
            case bench::Collective::kAllGather:
                MPI_Allgather(input, static_cast<int>(b.input_count), MPI_FLOAT, b.output,
                              static_cast<int>(b.input_count), MPI_FLOAT, MPI_COMM_WORLD);
                break;
            case bench::Collective::kReduceScatter:
                MPI_Reduce_scatter_block(input, b.output, static_cast<int>(b.output_count),
                                         MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
                break;
            case bench::Collective::kBroadcast:
                // Every rank names one buffer, as the root or as a receiver.
                MPI_Bcast(b.output, static_cast<int>(b.output_count), MPI_FLOAT, 0, MPI_COMM_WORLD);
                break;
            case bench::Collective::kBarrier:
                MPI_Barrier(MPI_COMM_WORLD);
                break;
            case bench::Collective::kSendRecv:
                ping_pong(b);
                break;
            case bench::Collective::kScan:
                MPI_Scan(input, b.output, static_cast<int>(b.output_count), MPI_FLOAT, MPI_SUM,
                         MPI_COMM_WORLD);
                break;
            case bench::Collective::kStep:
                break;  // comes here as an allreduce
        }
    }

    void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

  private:
    void ping_pong(const bench::Buffers& b) {
        const int peer = bench::partner_of(rank_);
        const int count = static_cast<int>(b.input_count);
        if (rank_ % 2 == 0) MPI_Send(b.input, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
        MPI_Recv(b.output, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank_ % 2 != 0) MPI_Send(b.input, count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
    }

    int rank_ = 0;
    int world_ = 0;
    bench::Case case_;
    std::vector<bench::Buffers> pairs_;
};

}  // namespace

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int result = 0;
    // In a block of its own: buffers go before MPI_Finalize().
    {
        MpiContender contender;
        result = bench::serve(contender, bench::option(argc, argv, "--control"),
                              bench::option(argc, argv, "--name"));
    }
    MPI_Finalize();
    return result;
}
