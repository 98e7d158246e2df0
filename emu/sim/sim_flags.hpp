// The flags of fabric-sim's commands, as CLI11 takes them. sim_options.cpp makes values of them.

#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "emu/sim/sim_options.hpp"

namespace emu {

/// Text options that become other things after parsing; CLI11 would throw in their parsers.
struct SimTexts {
    std::string placement;
    std::string link = "cxl_switch";
    std::string sizes;
    std::string algorithms;
    std::string devices;
    std::string trigger = "async";
    std::string size = "64MiB";
    std::string late = "1ms";
    std::string sample = "10ms";
    std::string step;
    std::string bucket = "25MiB";
    std::string model = "resnet50";
    std::string gradient = "100MiB";
    std::string move = "0s";
    std::string recovery = "1s";
    std::string speeds = "1";
    std::string window = "1s";
    std::string hosts;
    std::string ranks = "2";
    std::string kinds;
    std::string ttl = "5s";
    std::string calm = "20s";
    std::string length_of_failures = "60s";
    std::string reboot = "20s";
    std::string fence = "2s";
    std::string bandwidth = "125MB/s";
    std::string latency = "10us";
    std::string message = "2us";
    std::string memory = "4GB/s";
    std::string cache;
    std::string sample_bytes = "110KiB";
    std::string source_latency = "20ms";
    double store_slow = 1;
    bool no_fence = false;
    bool one_member = false;
    double batch = 32;
    double tflops = 20;
    double parameters = 0;
    bool json = false;
    bool csv = false;
    bool version = false;
};

// Of each command its own; what the flags write to has to outlive the parsing.
void add_allreduce_flags(CLI::App& command, SimOptions& options, SimTexts& texts);
void add_crossover_flags(CLI::App& command, SimOptions& options, SimTexts& texts);
void add_stragglers_flags(CLI::App& command, SimOptions& options, SimTexts& texts);
void add_bandwidth_flags(CLI::App& command, SimOptions& options, SimTexts& texts);
void add_training_flags(CLI::App& command, SimOptions& options, SimTexts& texts);
void add_control_flags(CLI::App& command, SimOptions& options, SimTexts& texts);
void add_cluster_flags(CLI::App& command, SimOptions& options, SimTexts& texts);
void add_network_flags(CLI::App& command, SimOptions& options, SimTexts& texts);
void add_data_flags(CLI::App& command, SimOptions& options, SimTexts& texts);
void add_validate_flags(CLI::App& command, SimOptions& options, SimTexts& texts);

/// And those that all have.
void add_output_flags(CLI::App& command, SimOptions& options, SimTexts& texts);

}  // namespace emu
