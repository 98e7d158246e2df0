#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "kernels/copy.hpp"
#include "kernels/cpu/kernel_set.hpp"

namespace {

struct Said {
    std::string on_stderr;
    std::string isa;
};

// What a fresh process with this FABRIC_ISA uses after several calls, and what it says meanwhile.
// The choice is made once per process, so each check needs one of its own.
Said ask_fresh_process(const char* wanted) {
    int errors[2], answer[2];
    REQUIRE(pipe(errors) == 0);
    REQUIRE(pipe(answer) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        dup2(errors[1], STDERR_FILENO);
        setenv("FABRIC_ISA", wanted, 1);
        float in = 3, out = 0;
        const void* source = &in;
        void* destination = &out;
        kernels::ReduceJob job;
        job.sources = &source;
        job.source_count = job.destination_count = 1;
        job.destinations = &destination;
        job.count = 1;
        for (int i = 0; i < 3; ++i) kernels::reduce(job);
        const std::string name = kernels::isa_name();
        const bool written =
            write(answer[1], name.data(), name.size()) == static_cast<ssize_t>(name.size());
        _exit(written && out == 3 ? 0 : 1);
    }
    close(errors[1]);
    close(answer[1]);
    const auto read_all = [](int fd) {
        std::string text;
        char part[256];
        for (ssize_t got; (got = read(fd, part, sizeof part)) > 0;) {
            text.append(part, static_cast<std::size_t>(got));
        }
        close(fd);
        return text;
    };
    Said said;
    said.on_stderr = read_all(errors[0]);
    said.isa = read_all(answer[0]);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    return said;
}

}  // namespace

TEST_SUITE("kernels.dispatch") {
    TEST_CASE("without a request the best available set is taken") {
        bool honoured = false;
        const kernels::KernelSet& best = kernels::choose_kernel_set(nullptr, &honoured);
        CHECK(honoured);
        CHECK(best.available());
        bool better = false;
        for (int i = 0; kernels::kernel_set(i) != nullptr; ++i) {
            const kernels::KernelSet* set = kernels::kernel_set(i);
            if (better) CHECK_FALSE(set->available());
            better = better || set == &best;
        }
        CHECK(&kernels::choose_kernel_set("", &honoured) == &best);
        CHECK(honoured);
    }

    TEST_CASE(
        "a request is honoured when the processor can, and falls back to the best otherwise") {
        const kernels::KernelSet& best = kernels::choose_kernel_set(nullptr, nullptr);
        for (int i = 0; kernels::kernel_set(i) != nullptr; ++i) {
            const kernels::KernelSet* set = kernels::kernel_set(i);
            bool honoured = false;
            const kernels::KernelSet& chosen = kernels::choose_kernel_set(set->name, &honoured);
            CHECK(honoured == set->available());
            CHECK(&chosen == (set->available() ? set : &best));
        }
        bool honoured = true;
        CHECK(&kernels::choose_kernel_set("mmx", &honoured) == &best);
        CHECK_FALSE(honoured);
    }

    TEST_CASE("FABRIC_ISA decides, and a request that can't be met is named once on stderr") {
        const Said scalar = ask_fresh_process("scalar");
        CHECK(scalar.isa == "scalar");
        CHECK(scalar.on_stderr == "");
        const Said unknown = ask_fresh_process("altivec");
        const std::string best = kernels::choose_kernel_set(nullptr, nullptr).name;
        CHECK(unknown.isa == best);
        CHECK(unknown.on_stderr ==
              "fabric: FABRIC_ISA=altivec is not available here; using " + best + "\n");
    }

    TEST_CASE("an empty job touches nothing") {
        kernels::ReduceJob job;
        job.source_count = job.destination_count = 1;
        kernels::reduce(job);
        kernels::copy(nullptr, nullptr, 0, true);
        CHECK(std::string(kernels::isa_name()) != "");
    }
}
