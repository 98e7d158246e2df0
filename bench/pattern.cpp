#include "bench/pattern.hpp"

#include <cmath>
#include <cstddef>

namespace bench {

namespace {

/// Element `index` of rank `rank`. 31 and 7 are coprime to every power of two, so that a part put
/// in another part's place is seen. Up to 30, so that sums of any number of ranks here are exact.
float value(int rank, std::size_t index) {
    return static_cast<float>((index * 7 + static_cast<std::size_t>(rank) * 13) % 31);
}

// Of ranks 0 to `world` - 1.
float sum_of_all(int world, std::size_t index) {
    float sum = 0;
    for (int rank = 0; rank < world; ++rank) sum += value(rank, index);
    return sum;
}

// What all ranks agree on without asking each other: values depend on the rank and the place alone.
float expected(Collective collective, int rank, int world, const Buffers& buffers,
               std::size_t index) {
    switch (collective) {
        case Collective::kAllGather: {
            const std::size_t part = buffers.input_count;
            return value(static_cast<int>(index / part), index % part);
        }
        case Collective::kReduceScatter:
            return sum_of_all(world, static_cast<std::size_t>(rank) * buffers.output_count + index);
        case Collective::kBroadcast:
            return value(0, index);
        case Collective::kSendRecv:
            return value(partner_of(rank), index);
        case Collective::kScan:
            // The last rank has what all have after an allreduce.
            return sum_of_all(rank + 1, index);
        default:
            return sum_of_all(world, index);
    }
}

}  // namespace

void fill(Collective collective, int rank, const Buffers& buffers) {
    // A broadcast that does nothing must not pass because the others had the right values already.
    const bool wrong_on_purpose = collective == Collective::kBroadcast && rank != 0;
    for (std::size_t i = 0; i < buffers.input_count; ++i)
        buffers.input[i] = wrong_on_purpose ? -1.0f : value(rank, i);
}

std::string verify(Collective collective, int rank, int world, const Buffers& buffers) {
    for (std::size_t i = 0; i < buffers.output_count; ++i) {
        const float want = expected(collective, rank, world, buffers, i);
        // Equality: with small whole numbers there is no rounding to allow for.
        if (buffers.output[i] == want) continue;
        return "element " + std::to_string(i) + " of rank " + std::to_string(rank) + " is " +
               std::to_string(buffers.output[i]) + " instead of " + std::to_string(want);
    }
    return "";
}

void fill_step(int rank, const std::vector<StepTensor>& tensors) {
    std::size_t index = 0;
    for (const StepTensor& tensor : tensors)
        for (std::size_t i = 0; i < tensor.count; ++i) tensor.gradient[i] = value(rank, index++);
}

// From zeros the moments are a share of the gradient and of its square, and corrected they are
// those themselves: a parameter moves by the learning rate, against the gradient's sign.
std::string verify_step(int world, const std::vector<StepTensor>& tensors) {
    std::size_t index = 0;
    for (const StepTensor& tensor : tensors) {
        for (std::size_t i = 0; i < tensor.count; ++i, ++index) {
            const double mean = sum_of_all(world, index) / world;
            const double moved = -AdamWOptions{}.learning_rate * mean / (mean + 1e-8);
            const double off =
                std::abs(tensor.first[i] - 0.1 * mean) + 100 * std::abs(tensor.values[i] - moved);
            if (off < 1e-4) continue;
            return "element " + std::to_string(index) + " was moved to " +
                   std::to_string(tensor.values[i]) + " instead of " + std::to_string(moved) +
                   ", its first moment to " + std::to_string(tensor.first[i]) + " instead of " +
                   std::to_string(0.1 * mean);
        }
    }
    return "";
}

}  // namespace bench
