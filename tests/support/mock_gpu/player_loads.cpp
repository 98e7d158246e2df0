#include "tests/support/mock_gpu/player_loads.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "tests/support/mock_gpu/driver_calls.hpp"

using namespace fabricshm::cuda;

namespace gpu_player {

std::string race_primary(const Words& words) {
    const auto run = [&words] {
        std::uint64_t wrong = 0;
        for (std::uint64_t i = 0; i < number(words, 1); ++i) {
            Handle context = nullptr;
            std::size_t free = 0;
            std::size_t total = 0;
            if (cuDevicePrimaryCtxRetain(&context, 0) != kSuccess) return ~std::uint64_t{0};
            cuCtxSetCurrent(context);
            cuMemGetInfo_v2(&free, &total);
            wrong += total - free < number(words, 2) ? 1 : 0;
            cuDevicePrimaryCtxRelease_v2(0);
        }
        return wrong;
    };
    std::uint64_t others = 0;
    std::thread other([&] { others = run(); });
    const std::uint64_t own = run();
    other.join();
    return "ok " + std::to_string(own + others);
}

std::string race(const Words& words) {
    std::mt19937_64 random(number(words, 1));
    std::vector<Pointer> held;  // 8 at the most
    std::uint64_t refused = 0;
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < number(words, 2); ++i) {
        const bool allocates = held.size() < 8 && (held.empty() || random() % 3 != 0);
        if (allocates) {
            Pointer out = 0;
            const std::size_t bytes = 1 + random() % number(words, 3);
            const bool is_pooled = random() % 4 == 0;
            const Status status =
                is_pooled ? cuMemAllocAsync(&out, bytes, nullptr) : cuMemAlloc_v2(&out, bytes);
            if (status == kSuccess) held.push_back(out);
            refused += status == kOutOfMemory ? 1 : 0;
            wrong += status != kSuccess && status != kOutOfMemory ? 1 : 0;
        } else {
            const std::size_t at = random() % held.size();
            if (cuMemFreeAsync(held[at], nullptr) != kSuccess) ++wrong;
            held[at] = held.back();
            held.pop_back();
        }
    }
    for (const Pointer pointer : held) cuMemFreeAsync(pointer, nullptr);
    return "ok " + std::to_string(refused) + " " + std::to_string(wrong);
}

std::string time_calls(const Words& words) {
    std::vector<std::uint64_t> times;
    const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
    for (std::uint64_t i = 0; i < number(words, 2); ++i) {
        Pointer out = 0;
        const auto begin = now();
        if (words.at(1) == "alloc") {
            cuMemAlloc_v2(&out, 4096);
        } else if (words.at(1) == "launch") {
            cuLaunchKernel(nullptr, 0, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
        }
        times.push_back(static_cast<std::uint64_t>(now() - begin));
        if (out != 0) cuMemFree_v2(out);
    }
    std::sort(times.begin(), times.end());
    return "ok " + std::to_string(times.at(times.size() / 2)) + " " +
           std::to_string(times.at(times.size() * 99 / 100));
}

std::string launch_for(const Words& words) {
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(number(words, 1));
    while (std::chrono::steady_clock::now() < until) {
        cuLaunchKernel(nullptr, static_cast<unsigned int>(number(words, 2)), 1, 1, 1, 1, 1, 0,
                       nullptr, nullptr, nullptr);
    }
    return "ok";
}

}  // namespace gpu_player
