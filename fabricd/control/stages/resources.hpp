// S221 and S222: how much can each node take on, by what it can do and how fast it answers? Pure.

#pragma once

#include <optional>
#include <span>
#include <vector>

namespace fabricd {

struct ResourceWeights {
    double capability = 1;  // alpha
    double response = 1;    // beta
};

/// R_i = (C_i / C_max)^alpha / (1 + T_i / T_ref)^beta, from 0 to 1: `speeds` C in samples per
/// second when computing, `responses` T the mean response time in seconds, `usual_s` T_ref what a
/// node computes between two responses: then C / (1 + T / T_ref) is what a node does in a second of
/// both. Falls with T and rises with C. Nothing when an input is unusable, no rank has a speed or
/// T_ref is 0.
std::optional<std::vector<double>> resource_strategy(std::span<const double> speeds,
                                                     std::span<const double> responses,
                                                     double usual_s,
                                                     const ResourceWeights& weights);

}  // namespace fabricd
