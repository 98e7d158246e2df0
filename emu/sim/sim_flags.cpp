#include "emu/sim/sim_flags.hpp"

#include <charconv>
#include <cstdint>

namespace emu {

namespace {

// CLI11 takes what is above 64 bits for the largest number there is.
CLI::Validator seed_number() {
    const auto check = [](const std::string& text) -> std::string {
        std::uint64_t seed = 0;
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, seed);
        if (error == std::errc{} && stop == end) return "";
        return "\"" + text + "\" is no whole number of at most 64 bits";
    };
    return {check, ""};
}

// Texts stay texts here; sim_options.cpp makes rates, sizes and placements of them and says in one
// line what is wrong.
void add_topology(CLI::App& command, SimOptions& options, SimTexts& texts) {
    TopologySpec& spec = options.spec;
    command
        .add_option("--topology", options.shape, "star, tree, chain, or a TOML file (default star)")
        ->type_name("SHAPE|PATH");
    command
        .add_option("--link", texts.link,
                    "Figures of links and memories: cxl_switch (default), cxl_switch_gpu, "
                    "cxl_box, mhd, cxl_expander, numa")
        ->type_name("NAME");
    command
        .add_option("--pools", spec.pools,
                    "Memories: of a star, or at each leaf switch of a "
                    "tree (default: one for 8 devices)")
        ->type_name("N");
    command.add_option("--per-host", spec.per_host, "Devices of a tree's host (default 8)")
        ->type_name("N");
    command
        .add_option("--hosts-per-leaf", spec.hosts_per_leaf,
                    "Hosts at a tree's leaf switch (default 8)")
        ->type_name("N");
    command
        .add_option("--oversubscription", spec.oversubscription,
                    "Links below a leaf switch over its uplink (default 1)")
        ->type_name("X");
    command
        .add_option("--placement", texts.placement,
                    "Where buffers are: interleaved over the pools (default), home (one pool "
                    "each), device (the device's own memory)")
        ->type_name("NAME");
}

// A list for commands that go through several sizes; the others take its first.
void add_devices(CLI::App& command, SimTexts& texts, const char* fallback) {
    command
        .add_option(
            "--devices", texts.devices,
            std::string("How many devices, 2 to 8192; not with a file (default ") + fallback + ")")
        ->type_name("N,...");
}

// Training and control walk the same traces, so that their answers can be compared.
void add_trace(CLI::App& command, SimOptions& options, SimTexts& texts) {
    TraceSpec& trace = options.trace;
    command.add_option("--steps", trace.steps, "Of a run (default 1000)")
        ->type_name("N")
        ->check(CLI::Range(1, 10'000'000));
    command.add_option("--stragglers", trace.stragglers, "Times a device turns slow (default 1)")
        ->type_name("N")
        ->check(CLI::Range(0, 100000));
    command.add_option("--slow-speed", trace.slow_speed, "Of a slow device (default 0.5)")
        ->type_name("X")
        ->check(CLI::Range(0.001, 1.0));
    command.add_option("--length", trace.length, "Mean steps of being slow (default 200)")
        ->type_name("N");
    command.add_option("--failures", trace.failures, "Devices that end (default 0)")
        ->type_name("N")
        ->check(CLI::Range(0, 8191));
    command.add_option("--noise", trace.noise, "Of compute times, a share (default 0.02)")
        ->type_name("SHARE")
        ->check(CLI::Range(0.0, 1.0));
    command.add_option("--gradient", texts.gradient, "Bytes merged in a step (default 100MiB)")
        ->type_name("SIZE");
    command.add_option("--move", texts.move, "Moving the whole batch's data (default 0s)")
        ->type_name("TIME");
    command.add_option("--recovery", texts.recovery, "After a failure (default 1s)")
        ->type_name("TIME");
    command.add_option("--traces", options.traces, "Different ones (default 20)")
        ->type_name("N")
        ->check(CLI::Range(1, 100000));
    command.add_option("--seed", trace.seed, "Of the first trace (default 1)")
        ->type_name("N")
        ->check(seed_number());
}

}  // namespace

// Every command has these three: an answer is for people, for a spreadsheet or for a program.
void add_output_flags(CLI::App& command, SimOptions& options, SimTexts& texts) {
    command.add_flag("--json", texts.json, "Print JSON");
    command.add_flag("--csv", texts.csv, "Print CSV");
    command.add_option("--output", options.output, "Write to a file instead")->type_name("PATH");
}

void add_allreduce_flags(CLI::App& command, SimOptions& options, SimTexts& texts) {
    add_topology(command, options, texts);
    add_devices(command, texts, "8");
    command.add_option("--sizes", texts.sizes, "Bytes of the vector, e.g. 8KiB,1MiB")
        ->type_name("SIZE,...");
    command
        .add_option("--algorithms", texts.algorithms,
                    "Of auto, flat, direct, ring, staged, host (default direct,ring,host)")
        ->type_name("NAME,...");
    command.add_option("--trigger", texts.trigger, "async (default) or sync")->type_name("NAME");
    command.add_flag("--outside-arena", options.outside_arena,
                     "Buffers are not in the pool and are staged through it");
}

void add_crossover_flags(CLI::App& command, SimOptions& options, SimTexts& texts) {
    add_topology(command, options, texts);
    add_devices(command, texts, "2,4,8,16,32,64,128,256");
}

void add_stragglers_flags(CLI::App& command, SimOptions& options, SimTexts& texts) {
    StragglerQuery& query = options.stragglers;
    add_topology(command, options, texts);
    add_devices(command, texts, "8");
    command.add_option("--size", texts.size, "Bytes of the vector (default 64MiB)")
        ->type_name("SIZE");
    command.add_option("--slow", query.slow, "How many times slower is slow (default 4)")
        ->type_name("X")
        ->check(CLI::Range(1.0, 1e6));
    command.add_option("--late", texts.late, "Mean lateness (default 1ms)")->type_name("TIME");
    command.add_option("--runs", query.runs, "Of each random scenario (default 20)")
        ->type_name("N")
        ->check(CLI::Range(1, 100000));
    command.add_option("--seed", query.seed, "Of the random scenarios (default 1)")
        ->type_name("N")
        ->check(seed_number());
}

// No topology: the pool's rate is what is sought, so that the shape is a star whose pool gets it.
void add_bandwidth_flags(CLI::App& command, SimOptions& options, SimTexts& texts) {
    BandwidthQuery& query = options.bandwidth;
    command
        .add_option("--model", texts.model,
                    "resnet50 (default), gpt2, gpt2-xl, or any name "
                    "together with --parameters and --step")
        ->type_name("NAME");
    command.add_option("--parameters", texts.parameters, "Instead of the model's")
        ->type_name("N")
        ->check(CLI::Range(1.0, 1e13));
    command.add_option("--bytes-each", query.bytes_each, "Of a gradient's value (default 4)")
        ->type_name("N")
        ->check(CLI::Range(1.0, 8.0));
    command.add_option("--batch", texts.batch, "Samples of a device in a step (default 32)")
        ->type_name("N")
        ->check(CLI::Range(1e-3, 1e9));
    command
        .add_option("--tflops", texts.tflops,
                    "What a device really does of 10^12 operations/s (default 20)")
        ->type_name("X")
        ->check(CLI::Range(1e-6, 1e6));
    command.add_option("--step", texts.step, "Computing time of a step, instead of the above")
        ->type_name("TIME");
    command
        .add_option("--hidden", query.hidden_share,
                    "Share of the step that communication may overlap with (default 0.5)")
        ->type_name("SHARE")
        ->check(CLI::Range(0.0, 1.0));
    command
        .add_option("--target", query.target_share,
                    "Exposed communication over the whole step (default 0.1)")
        ->type_name("SHARE")
        ->check(CLI::Range(0.001, 0.99));
    command.add_option("--bucket", texts.bucket, "Bytes of one operation (default 25MiB)")
        ->type_name("SIZE");
    command.add_option("--link", texts.link, "Of the devices, as in the other commands")
        ->type_name("NAME");
    add_devices(command, texts, "2,4,8,16,32,64");
}

void add_training_flags(CLI::App& command, SimOptions& options, SimTexts& texts) {
    add_topology(command, options, texts);
    add_devices(command, texts, "8");
    add_trace(command, options, texts);
}

void add_control_flags(CLI::App& command, SimOptions& options, SimTexts& texts) {
    add_topology(command, options, texts);
    add_devices(command, texts, "8,64,256,1024");
    add_trace(command, options, texts);
    command
        .add_option("--speeds", texts.speeds,
                    "Of the devices in turn, relative (default 1), e.g. 1,1,0.5,0.25")
        ->type_name("X,...");
    command.add_option("--window", texts.window, "Of the loop (default 1s)")->type_name("TIME");
}

// Hosts of a cluster have a network and a store, which are no topology of devices.
void add_cluster_flags(CLI::App& command, SimOptions& options, SimTexts& texts) {
    ClusterScenario& scenario = options.cluster.scenario;
    command
        .add_option("--hosts", texts.hosts,
                    "How many hosts, 2 to 1024, in turn (default 2,8,32,128)")
        ->type_name("N,...");
    command.add_option("--failures", scenario.failures, "Of a run (default 8)")
        ->type_name("N")
        ->check(CLI::Range(0, 10000));
    command
        .add_option("--kinds", texts.kinds,
                    "Of failures, in turn: death, cut, pause, restart, leader, down, data, restore "
                    "(default all)")
        ->type_name("NAME,...");
    command.add_option("--ttl", texts.ttl, "Of a host's lease (default 5s)")->type_name("TIME");
    command.add_option("--calm", texts.calm, "Before the first failure (default 20s)")
        ->type_name("TIME");
    command.add_option("--length", texts.length_of_failures, "In which they begin (default 60s)")
        ->type_name("TIME");
    command.add_option("--reboot", texts.reboot, "Of a host without power (default 20s)")
        ->type_name("TIME");
    command.add_option("--fence-time", texts.fence, "Of the fence command (default 2s)")
        ->type_name("TIME");
    command
        .add_option("--fence-fails", scenario.fence_fails, "Share of fence commands (default 0.1)")
        ->type_name("SHARE")
        ->check(CLI::Range(0.0, 1.0));
    command.add_flag("--no-fence-command", texts.no_fence, "Fences are for boots and hosts alone");
    command.add_flag("--one-member", texts.one_member, "etcd has one member instead of three");
    command.add_option("--store-slow", texts.store_slow, "Times that etcd is slower (default 1)")
        ->type_name("X")
        ->check(CLI::Range(0.1, 100.0));
    command.add_option("--runs", options.cluster.runs, "With other seeds (default 1)")
        ->type_name("N")
        ->check(CLI::Range(1, 100000));
    command.add_option("--seed", scenario.seed, "Of the first run (default 1)")
        ->type_name("N")
        ->check(seed_number());
}

void add_network_flags(CLI::App& command, SimOptions& options, SimTexts& texts) {
    command
        .add_option("--hosts", texts.hosts,
                    "How many hosts, 2 to 1024, in turn (default 2,8,32,128)")
        ->type_name("N,...");
    command.add_option("--ranks", texts.ranks, "Of a host, 1 to 64; of hosts in turn (default 2)")
        ->type_name("N,...");
    command.add_option("--sizes", texts.sizes, "Bytes of the vector (default 4KiB,1MiB,64MiB)")
        ->type_name("SIZE,...");
    command.add_option("--bandwidth", texts.bandwidth, "Of a host's link (default 125MB/s)")
        ->type_name("RATE");
    command.add_option("--latency", texts.latency, "One way (default 10us)")->type_name("TIME");
    command.add_option("--message", texts.message, "Of a rank, for each message (default 2us)")
        ->type_name("TIME");
    command.add_option("--memory", texts.memory, "Of a host, for all its ranks (default 4GB/s)")
        ->type_name("RATE");
    command
        .add_option("--host-ring", options.network.ring_from,
                    "From so many hosts on large sums go along a ring of the hosts, as with "
                    "FABRIC_NET_RING (default never)")
        ->type_name("N")
        ->check(CLI::Range(3, 1024));
}

// A job, a cache and a source.
void add_data_flags(CLI::App& command, SimOptions& options, SimTexts& texts) {
    LoadingFigures& figures = options.loading.figures;
    command.add_option("--cache", texts.cache, "Shares of the set that fit (default 0.1,0.5,0.9)")
        ->type_name("SHARE,...");
    command.add_option("--samples", figures.samples, "Of the set (default 10000)")
        ->type_name("N")
        ->check(CLI::Range(1, 10'000'000));
    command.add_option("--sample", texts.sample_bytes, "Bytes of each (default 110KiB)")
        ->type_name("SIZE");
    command
        .add_option("--rate", figures.samples_per_s,
                    "Samples that the job reads in a second when it never waits (default 1000)")
        ->type_name("N")
        ->check(CLI::Range(0.001, 1e9));
    command
        .add_option("--source", figures.source,
                    "The source's rate over what the job reads (default 0.5)")
        ->type_name("SHARE")
        ->check(CLI::Range(0.001, 1000.0));
    command.add_option("--latency", texts.source_latency, "Of the source (default 20ms)")
        ->type_name("TIME");
    command
        .add_option("--workers", figures.workers,
                    "Samples that the loader itself asks for ahead of their use (default 8)")
        ->type_name("N")
        ->check(CLI::Range(1, 100'000));
    command.add_option("--epochs", figures.epochs, "Default 8")
        ->type_name("N")
        ->check(CLI::Range(2, 1000));
    command.add_option("--seed", figures.seed, "Of the first epoch's order (default 1)")
        ->type_name("N")
        ->check(seed_number());
}

// No topology either: the machine is the one that it runs on.
void add_validate_flags(CLI::App& command, SimOptions& options, SimTexts& texts) {
    add_devices(command, texts, "2,4");
    command.add_option("--sizes", texts.sizes, "Bytes of the vector (default 8 to 32MiB)")
        ->type_name("SIZE,...");
    command.add_option("--algorithms", texts.algorithms, "Default flat,direct,ring,staged,host")
        ->type_name("NAME,...");
    command
        .add_option("--sample", texts.sample, "Measuring time per case and round (default 10ms)")
        ->type_name("TIME");
    command.add_option("--rounds", options.validate.rounds, "Default 3")
        ->type_name("N")
        ->check(CLI::Range(1, 1000));
}

}  // namespace emu
