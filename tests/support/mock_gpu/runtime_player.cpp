// A program of the CUDA runtime: it knows neither the driver nor a quota. Steered as player.cpp is:
// a command each line, answered by `ok`, `ok NUMBER...`, or the runtime's number of the error.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#if FABRIC_HAS_KERNEL
cudaError_t launch_nothing(unsigned int blocks, unsigned int threads, cudaStream_t stream);
#else
// Without nvcc there is no device code that could be launched.
cudaError_t launch_nothing(unsigned int, unsigned int, cudaStream_t) {
    return cudaErrorInvalidDeviceFunction;
}
#endif

namespace {

using Numbers = std::vector<std::uint64_t>;

std::vector<void*> g_memory;  // by the number that a command's answer gave
cudaStream_t g_stream = nullptr;

std::string answer(cudaError_t status, const Numbers& numbers = {}) {
    // What an error leaves behind must not be found by the next call.
    cudaGetLastError();
    if (status != cudaSuccess) return std::to_string(status);
    std::string text = "ok";
    for (const std::uint64_t number : numbers) text += " " + std::to_string(number);
    return text;
}

std::string made(cudaError_t status, void* memory) {
    if (status == cudaSuccess) g_memory.push_back(memory);
    return answer(status, {g_memory.size() - 1});
}

std::string start(const Numbers&) {
    const cudaError_t status = cudaSetDevice(0);
    return answer(status == cudaSuccess ? cudaFree(nullptr) : status);
}

std::string allocate(const Numbers& bytes) {
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, bytes.at(0));
    return made(status, memory);
}

std::string allocate_managed(const Numbers& bytes) {
    void* memory = nullptr;
    const cudaError_t status = cudaMallocManaged(&memory, bytes.at(0), cudaMemAttachGlobal);
    return made(status, memory);
}

// In rows of 1000 bytes, which take 1024 of the device.
std::string allocate_rows(const Numbers& rows) {
    void* memory = nullptr;
    std::size_t pitch = 0;
    const cudaError_t status = cudaMallocPitch(&memory, &pitch, 1000, rows.at(0));
    return made(status, memory);
}

std::string free_memory(const Numbers& which) {
    return answer(cudaFree(g_memory.at(which.at(0))));
}

#if CUDART_VERSION >= 11020
std::string allocate_async(const Numbers& bytes) {
    void* memory = nullptr;
    const cudaError_t status = cudaMallocAsync(&memory, bytes.at(0), g_stream);
    return made(status, memory);
}

std::string free_async(const Numbers& which) {
    return answer(cudaFreeAsync(g_memory.at(which.at(0)), g_stream));
}
#endif

std::string memory_info(const Numbers&) {
    std::size_t free = 0;
    std::size_t total = 0;
    const cudaError_t status = cudaMemGetInfo(&free, &total);
    return answer(status, {free, total});
}

std::string properties(const Numbers&) {
    cudaDeviceProp found{};
    const cudaError_t status = cudaGetDeviceProperties(&found, 0);
    return answer(status, {found.totalGlobalMem});
}

// There and back; what comes back is the device's matter.
std::string copy(const Numbers& which) {
    char text[64] = "";
    void* memory = g_memory.at(which.at(0));
    cudaError_t status = cudaMemset(memory, 1, sizeof text);
    if (status == cudaSuccess) {
        status = cudaMemcpy(memory, text, sizeof text, cudaMemcpyHostToDevice);
    }
    if (status == cudaSuccess) {
        status = cudaMemcpy(text, memory, sizeof text, cudaMemcpyDeviceToHost);
    }
    return answer(status);
}

std::string make_stream(const Numbers&) {
    return answer(cudaStreamCreate(&g_stream));
}

std::string end_stream(const Numbers&) {
    cudaError_t status = cudaStreamSynchronize(g_stream);
    if (status == cudaSuccess) status = cudaStreamDestroy(g_stream);
    g_stream = nullptr;
    return answer(status);
}

std::string event(const Numbers&) {
    cudaEvent_t made = nullptr;
    cudaError_t status = cudaEventCreate(&made);
    if (status == cudaSuccess) status = cudaEventRecord(made, g_stream);
    if (status == cudaSuccess) status = cudaEventSynchronize(made);
    if (status == cudaSuccess) status = cudaEventDestroy(made);
    return answer(status);
}

// Blocks, threads of each, and how often.
std::string launch(const Numbers& shape) {
    for (std::uint64_t i = 0; i < shape.at(2); ++i) {
        const auto status = launch_nothing(static_cast<unsigned int>(shape.at(0)),
                                           static_cast<unsigned int>(shape.at(1)), g_stream);
        if (status != cudaSuccess) return answer(status);
    }
    return answer(cudaDeviceSynchronize());
}

// The same as one graph of that many kernels, launched once. Needs a stream.
std::string launch_graph(const Numbers& shape) {
    cudaError_t status = cudaStreamBeginCapture(g_stream, cudaStreamCaptureModeGlobal);
    for (std::uint64_t i = 0; i < shape.at(2) && status == cudaSuccess; ++i) {
        status = launch_nothing(static_cast<unsigned int>(shape.at(0)),
                                static_cast<unsigned int>(shape.at(1)), g_stream);
    }
    cudaGraph_t graph = nullptr;
    if (status == cudaSuccess) status = cudaStreamEndCapture(g_stream, &graph);
    cudaGraphExec_t executable = nullptr;
#if CUDART_VERSION >= 12000
    if (status == cudaSuccess) status = cudaGraphInstantiate(&executable, graph, 0);
#else
    if (status == cudaSuccess) {
        status = cudaGraphInstantiate(&executable, graph, nullptr, nullptr, 0);
    }
#endif
    if (status == cudaSuccess) status = cudaGraphLaunch(executable, g_stream);
    if (status == cudaSuccess) status = cudaStreamSynchronize(g_stream);
    if (status == cudaSuccess) status = cudaGraphExecDestroy(executable);
    if (status == cudaSuccess) status = cudaGraphDestroy(graph);
    return answer(status);
}

const std::map<std::string, std::function<std::string(const Numbers&)>>& commands() {
    static const std::map<std::string, std::function<std::string(const Numbers&)>> all = {
        {"init", start},
        {"context", [](const Numbers&) { return std::string("ok"); }},  // came with the start
        {"version", [](const Numbers&) { return answer(cudaSuccess, {CUDART_VERSION}); }},
        {"reset", [](const Numbers&) { return answer(cudaDeviceReset()); }},
        {"alloc", allocate},
        {"managed", allocate_managed},
        {"rows", allocate_rows},
        {"free", free_memory},
#if CUDART_VERSION >= 11020
        {"async", allocate_async},
        {"free-async", free_async},
#endif
        {"info", memory_info},
        {"properties", properties},
        {"copy", copy},
        {"stream", make_stream},
        {"end-stream", end_stream},
        {"event", event},
        {"launch", launch},
        {"graph", launch_graph},
    };
    return all;
}

}  // namespace

int main() {
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream text(line);
        std::string word;
        Numbers numbers;
        text >> word;
        for (std::uint64_t number = 0; text >> number;) numbers.push_back(number);
        const auto found = commands().find(word);
        std::cout << (found != commands().end() ? found->second(numbers) : "no such command")
                  << std::endl;
    }
    return 0;
}
