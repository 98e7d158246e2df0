// `fabric-data status`, `why`, `load`, `flush`, `drop`, `verify`, `refresh`: what people and
// scripts ask a running service.

#pragma once

#include <string>

namespace fabricd {

struct ServiceCommand {
    std::string name;
    std::string path;    // in the namespace: "/images/train"
    std::string socket;  // "": the usual places
    std::string wait;    // of load: "10%"
    bool with_silo = false;
    bool json = false;
    int timeout_s = 600;
};

/// Prints the answer. The exit code: 0 it was done; 1 the service refused it, something of it
/// failed, or the output could not be written; 2 wrong usage, or no service.
int run_service_command(const ServiceCommand& command);

/// For people, from the service's JSON.
std::string status_text(const std::string& json);
std::string why_text(const std::string& json);
std::string walk_text(const std::string& json, bool is_load);
/// Of a load that nothing waits for.
std::string queued_text(const std::string& json);

/// "10%": 0.1. Nothing: it is no share from 0% to 100%.
bool parse_share(const std::string& text, double& share);

}  // namespace fabricd
