-- For slurmctld (JobSubmitPlugins=lua, next to slurm.conf): a job with --fabric=SIZE asks for as much of the GRES `fabric`
-- by itself, in whole GiB, so that none can forget it. Where there is a job_submit.lua already, call count_fabric() from it.

local kUnit = 2 ^ 30
local kFactors = {
    [""] = 1, B = 1,
    K = 2 ^ 10, KiB = 2 ^ 10, M = 2 ^ 20, MiB = 2 ^ 20, G = 2 ^ 30, GiB = 2 ^ 30, T = 2 ^ 40, TiB = 2 ^ 40,
}

-- What Slurm's plugin for --fabric hands on to the job.
local function fabric_size(job)
    for _, variable in pairs(job.spank_job_env or {}) do
        local size = string.match(variable, "^_SLURM_SPANK_OPTION_fabric_fabric=(.*)$")
        if size then return size end
    end
    return nil
end

-- nil: no size.
local function units_of(size)
    local number, unit = string.match(size, "^([%d.]+) ?(%a*)$")
    local factor = kFactors[unit or "?"]
    -- Digits on both sides of a point, as fabricd reads sizes; tonumber() takes ".5" and "1.", too.
    local is_plain = number and (string.match(number, "^%d+$") or string.match(number, "^%d+%.%d+$"))
    number = is_plain and tonumber(number)
    if not number or not factor then return nil end
    return math.ceil(number * factor / kUnit)
end

function count_fabric(job)
    local size = fabric_size(job)
    if not size then return slurm.SUCCESS end
    local units = units_of(size)
    if not units then
        slurm.log_user("--fabric=%s can't be counted; expected bytes, as 64M or 48G", size)
        return slurm.ERROR
    end
    local asked = job.tres_per_node
    -- What the user asked for by --gres stands.
    if asked and string.find(asked, "fabric", 1, true) then return slurm.SUCCESS end
    local gres = string.format("gres:fabric:%d", units)
    job.tres_per_node = (asked and asked ~= "") and (asked .. "," .. gres) or gres
    return slurm.SUCCESS
end

function slurm_job_submit(job, partitions, user)
    return count_fabric(job)
end

function slurm_job_modify(job, record, partitions, user)
    return slurm.SUCCESS
end

return slurm.SUCCESS
