/* A libnvidia-ml.so.1 for machines without a GPU: it plays boards and their faults as a control file says.
 *
 * The file is named by ZEROHOP_NVML_CONTROL and read again at every call, so that a test changes the boards while they
 * are being read. One setting a line, `#` for comments:
 *
 *     boards 8                 how many there are
 *     init 18                  what nvmlInit returns (0 ok, 9 driver not loaded, 18 version mismatch, 999 unknown)
 *     epoch 2                  the driver was reloaded: handles of an older epoch are worth nothing
 *     hang nvmlDeviceGet...    this call returns only when the line is gone; `hang *` means all of them
 *     missing nvmlDeviceGet... this symbol answers NVML_ERROR_FUNCTION_NOT_FOUND, as an older driver lacks it
 *     gpu 3 key value          a value of board 3; `gpu * key value` for all boards (a later line wins)
 *
 * Keys: util mem_util mem_total_mib mem_used_mib mem_reserved_mib power_mw power_limit_mw temp mem_temp sm_mhz mem_mhz
 * sm_max_mhz mem_max_mhz reasons ecc_corrected ecc_uncorrected remap_corr remap_unc remap_pending remap_failed retired
 * retired_pending nvlinks nvlinks_down nvlink_rx_kib nvlink_tx_kib pcie_replay energy_mj processes recovery minor
 * mig (number of instances; -1: MIG cannot be had, 0: off), lost, gone (no longer listed), reset_required, unknown,
 * unified (1: memory calls refused, 2: memory total is 0), sentinel (1: "no value" everywhere), xid + xid_seq (an event
 * with this code each time the sequence number grows), and `no_<call>` 1 for NVML_ERROR_NOT_SUPPORTED, where <call> is
 * the symbol without `nvmlDevice`.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13, LOST = 15, RESET_REQUIRED = 16, VERSION_MISMATCH = 25, UNKNOWN = 999
};

#define BOARDS 16
#define INSTANCES 8

/* Handles are addresses of these: a board, or an instance of one. */
struct device { int board; int instance; long long epoch; };
static struct device devices[BOARDS][INSTANCES + 1];
static long long session_epoch = -1;
static long long xid_told[BOARDS];

/* A copy of the control file to be cut into lines; read again only when it is another file than before. */
static char *control(void)
{
    static _Thread_local char original[65536], text[sizeof original];
    static _Thread_local struct stat before;
    const char *path = getenv("ZEROHOP_NVML_CONTROL");
    struct stat now;
    if (!path || stat(path, &now)) {
        text[0] = 0;
        return text;
    }
    if (now.st_ino != before.st_ino || now.st_mtim.tv_sec != before.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != before.st_mtim.tv_nsec || now.st_size != before.st_size) {
        FILE *file = fopen(path, "r");
        size_t length = file ? fread(original, 1, sizeof original - 1, file) : 0;
        original[length] = 0;
        if (file) fclose(file);
        before = now;
    }
    return strcpy(text, original);
}

/* The last line that sets `key` wins. board -1: a setting of the whole driver. */
static long long setting(int board, const char *key, long long otherwise)
{
    char *save = NULL, name[96], who[16];
    long long value;
    for (char *line = strtok_r(control(), "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (board < 0) {
            if (sscanf(line, "%95s %lli", name, &value) == 2 && !strcmp(name, key)) otherwise = value;
        } else if (sscanf(line, "gpu %15s %95s %lli", who, name, &value) == 3 && !strcmp(name, key)) {
            if (!strcmp(who, "*") || atoi(who) == board) otherwise = value;
        }
    }
    return otherwise;
}

/* Is `call` the subject of a `word` line, such as `hang nvmlInitWithFlags`? */
static int named(const char *word, const char *call)
{
    char *save = NULL, first[32], second[96];
    for (char *line = strtok_r(control(), "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (sscanf(line, "%31s %95s", first, second) == 2 && !strcmp(first, word))
            if (!strcmp(second, "*") || !strcmp(second, call)) return 1;
    return 0;
}

static int enter(const char *call)
{
    while (named("hang", call)) nanosleep(&(struct timespec){0, 20000000}, NULL);
    return named("missing", call) ? FUNCTION_NOT_FOUND : OK;
}

static int check(struct device *device, const char *call)
{
    char refusal[112];
    int answer = enter(call);
    if (answer) return answer;
    if (session_epoch < 0 || device->epoch != setting(-1, "epoch", 0)) return UNINITIALIZED;
    if (setting(device->board, "lost", 0)) return LOST;
    if (setting(device->board, "reset_required", 0)) return RESET_REQUIRED;
    if (setting(device->board, "unknown", 0)) return UNKNOWN;
    if (device->instance && device->instance > setting(device->board, "mig", -1)) return INVALID_ARGUMENT;
    snprintf(refusal, sizeof refusal, "no_%s", call + strlen("nvmlDevice"));
    return setting(device->board, refusal, 0) ? NOT_SUPPORTED : OK;
}

#define ENTER(device) do { int answer_ = check(device, __func__); if (answer_) return answer_; } while (0)
#define NOT_FOR_INSTANCES(device) do { if ((device)->instance) return NOT_SUPPORTED; } while (0)
#define NOT_WITH_MIG(device) do { if (setting((device)->board, "mig", -1) > 0) return NOT_SUPPORTED; } while (0)

static int blank(struct device *device) { return setting(device->board, "sentinel", 0) != 0; }

/* ---- the library ---- */

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    int answer = enter(__func__);
    if (!answer) answer = (int)setting(-1, "init", 0);
    if (answer) return answer;
    session_epoch = setting(-1, "epoch", 0);
    for (int board = 0; board < BOARDS; board++)
        for (int instance = 0; instance <= INSTANCES; instance++)
            devices[board][instance] = (struct device){board, instance, session_epoch};
    return OK;
}

int nvmlShutdown(void)
{
    session_epoch = -1;
    return OK;
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case NOT_SUPPORTED: return "Not Supported";
    case 9: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case LOST: return "GPU is lost";
    case RESET_REQUIRED: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    int answer = enter(__func__);
    if (!answer) snprintf(version, length, "%lld.54.15", setting(-1, "driver", 550));
    return answer;
}

/* ---- boards ---- */

static int listed(int board) { return board < setting(-1, "boards", 0) && !setting(board, "gone", 0); }

int nvmlDeviceGetCount_v2(unsigned *count)
{
    int answer = enter(__func__);
    if (answer) return answer;
    *count = 0;
    for (int board = 0; board < BOARDS; board++) *count += listed(board);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device)
{
    int answer = enter(__func__);
    if (answer) return answer;
    for (int board = 0; board < BOARDS; board++)
        if (listed(board) && index-- == 0) {
            *device = &devices[board][0];
            return setting(board, "lost", 0) ? LOST : OK;
        }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned length)
{
    ENTER(device);
    snprintf(uuid, length, "%s-5afe0000-0000-4000-8000-%06d%06d", device->instance ? "MIG" : "GPU", device->instance,
             device->board);
    return OK;
}

int nvmlDeviceGetName(struct device *device, char *name, unsigned length)
{
    ENTER(device);
    snprintf(name, length, "NVIDIA H100 80GB HBM3%s", device->instance ? " MIG 1g.10gb" : "");
    return OK;
}

int nvmlDeviceGetMinorNumber(struct device *device, unsigned *minor)
{
    ENTER(device);
    *minor = (unsigned)setting(device->board, "minor", device->board);
    return OK;
}

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *info)
{
    ENTER(device);
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", 0x10 + device->board);
    return OK;
}

/* ---- load, memory, power, heat, clocks ---- */

int nvmlDeviceGetUtilizationRates(struct device *device, unsigned *rates)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    NOT_WITH_MIG(device);
    rates[0] = blank(device) ? 0xFFFFFFFFu : (unsigned)setting(device->board, "util", 0);
    rates[1] = blank(device) ? 0xFFFFFFFFu : (unsigned)setting(device->board, "mem_util", 0);
    return OK;
}

#define MIB (1ull << 20)

static void memory(struct device *device, unsigned long long *total, unsigned long long *used, unsigned long long *reserved)
{
    unsigned long long parts = device->instance ? 7 : 1;
    *total = blank(device) ? ~0ull : (unsigned long long)setting(device->board, "mem_total_mib", 81559) * MIB / parts;
    *used = blank(device) ? ~0ull : (unsigned long long)setting(device->board, "mem_used_mib", 0) * MIB / parts;
    *reserved = blank(device) ? ~0ull : (unsigned long long)setting(device->board, "mem_reserved_mib", 551) * MIB / parts;
    if (setting(device->board, "unified", 0) == 2) *total = *used = *reserved = 0;
}

struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *info)
{
    ENTER(device);
    if (info->version != (2u << 24 | sizeof *info)) return VERSION_MISMATCH;
    if (setting(device->board, "unified", 0) == 1) return NOT_SUPPORTED;
    memory(device, &info->total, &info->used, &info->reserved);
    info->free = info->total - info->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo(struct device *device, unsigned long long *info)
{
    unsigned long long reserved;
    ENTER(device);
    if (setting(device->board, "unified", 0) == 1) return NOT_SUPPORTED;
    memory(device, &info[0], &info[2], &reserved);
    info[1] = info[0] - info[2];
    return OK;
}

int nvmlDeviceGetPowerUsage(struct device *device, unsigned *milliwatts)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    *milliwatts = blank(device) ? 0xFFFFFFFFu : (unsigned)setting(device->board, "power_mw", 70000);
    return OK;
}

int nvmlDeviceGetEnforcedPowerLimit(struct device *device, unsigned *milliwatts)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    *milliwatts = (unsigned)setting(device->board, "power_limit_mw", 700000);
    return OK;
}

struct temperature { unsigned version; int sensor; int celsius; };

int nvmlDeviceGetTemperatureV(struct device *device, struct temperature *temperature)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    if (temperature->version != (1u << 24 | sizeof *temperature)) return VERSION_MISMATCH;
    temperature->celsius = (int)setting(device->board, "temp", 35);
    return OK;
}

int nvmlDeviceGetTemperature(struct device *device, int sensor, unsigned *celsius)
{
    (void)sensor;
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    *celsius = (unsigned)setting(device->board, "temp", 35);
    return OK;
}

int nvmlDeviceGetClockInfo(struct device *device, int kind, unsigned *mhz)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    *mhz = (unsigned)(kind == 1 ? setting(device->board, "sm_mhz", 1980) : setting(device->board, "mem_mhz", 2619));
    return OK;
}

int nvmlDeviceGetMaxClockInfo(struct device *device, int kind, unsigned *mhz)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    *mhz = (unsigned)(kind == 1 ? setting(device->board, "sm_max_mhz", 1980) : setting(device->board, "mem_max_mhz", 2619));
    return OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(struct device *device, unsigned long long *reasons)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    *reasons = (unsigned long long)setting(device->board, "reasons", 1);
    return OK;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device, unsigned long long *reasons)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    *reasons = (unsigned long long)setting(device->board, "reasons", 1);
    return OK;
}

/* ---- errors, links, energy, processes ---- */

int nvmlDeviceGetTotalEccErrors(struct device *device, int kind, int counter, unsigned long long *errors)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    *errors = (unsigned long long)setting(device->board, kind ? "ecc_uncorrected" : "ecc_corrected", 0);
    if (counter) *errors += 1000; /* the board's lifetime holds more than this driver's */
    return OK;
}

int nvmlDeviceGetRemappedRows(struct device *device, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    NOT_WITH_MIG(device);
    *corr = (unsigned)setting(device->board, "remap_corr", 0);
    *unc = (unsigned)setting(device->board, "remap_unc", 0);
    *pending = (unsigned)setting(device->board, "remap_pending", 0);
    *failed = (unsigned)setting(device->board, "remap_failed", 0);
    return OK;
}

int nvmlDeviceGetRetiredPages(struct device *device, int cause, unsigned *count, unsigned long long *pages)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    unsigned held = cause ? 0 : (unsigned)setting(device->board, "retired", 0), room = *count;
    *count = held;
    if (pages == NULL || room < held) return held ? INSUFFICIENT_SIZE : OK;
    for (unsigned i = 0; i < held; i++) pages[i] = 0x1000ull * i;
    return OK;
}

int nvmlDeviceGetRetiredPagesPendingStatus(struct device *device, unsigned *pending)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    *pending = (unsigned)setting(device->board, "retired_pending", 0);
    return OK;
}

int nvmlDeviceGetNvLinkState(struct device *device, unsigned link, unsigned *active)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    long long links = setting(device->board, "nvlinks", 18);
    if (link >= links) return links ? INVALID_ARGUMENT : NOT_SUPPORTED;
    *active = link >= setting(device->board, "nvlinks_down", 0);
    return OK;
}

int nvmlDeviceGetPcieReplayCounter(struct device *device, unsigned *replays)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    *replays = (unsigned)setting(device->board, "pcie_replay", 0);
    return OK;
}

int nvmlDeviceGetTotalEnergyConsumption(struct device *device, unsigned long long *millijoules)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    *millijoules = (unsigned long long)setting(device->board, "energy_mj", 123456789);
    return OK;
}

struct process { unsigned pid; unsigned long long used; unsigned instance, compute_instance; };

int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count, struct process *processes)
{
    ENTER(device);
    unsigned held = (unsigned)setting(device->board, "processes", 0), room = *count;
    *count = held;
    if (room < held) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < held; i++) processes[i] = (struct process){1000 + i, ~0ull, 0, 0};
    return OK;
}

struct field {
    uint32_t id, scope;
    int64_t timestamp, latency;
    unsigned type, answer;
    union { double d; unsigned ui; unsigned long long ull; } value;
};

int nvmlDeviceGetFieldValues(struct device *device, int count, struct field *fields)
{
    ENTER(device);
    NOT_FOR_INSTANCES(device);
    for (int i = 0; i < count; i++) {
        const char *key = NULL;
        switch (fields[i].id) {
        case 82: key = "mem_temp"; break;
        case 138: key = "nvlink_tx_kib"; break;
        case 139: key = "nvlink_rx_kib"; break;
        case 186: key = "power_mw"; break;
        case 230: key = "recovery"; break;
        }
        long long value = key ? setting(device->board, key, -1) : -1;
        if (key && value < 0 && fields[i].id == 82) value = 40;
        fields[i].answer = value < 0 ? NOT_SUPPORTED : OK;
        fields[i].type = fields[i].id == 138 || fields[i].id == 139 ? 3 : 1;
        fields[i].value.ull = value < 0 ? 0 : (unsigned long long)value;
    }
    return OK;
}

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending)
{
    ENTER(device);
    long long instances = setting(device->board, "mig", -1);
    if (instances < 0) return NOT_SUPPORTED;
    *current = *pending = instances > 0;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count)
{
    ENTER(device);
    *count = 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **instance)
{
    ENTER(device);
    if (index >= setting(device->board, "mig", 0) || index >= INSTANCES) return NOT_FOUND;
    *instance = &devices[device->board][index + 1];
    return OK;
}

int nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *id)
{
    ENTER(device);
    *id = (unsigned)device->instance + 6; /* ids do not start at 0 and are no index */
    return OK;
}

/* ---- XID events ---- */

int nvmlEventSetCreate(void **set)
{
    static int the_set;
    *set = &the_set;
    for (int board = 0; board < BOARDS; board++) xid_told[board] = setting(board, "xid_seq", 0);
    return OK;
}

int nvmlEventSetFree(void *set)
{
    (void)set;
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(struct device *device, unsigned long long *types)
{
    ENTER(device);
    *types = 0x8 | 0x2 | 0x1;
    return OK;
}

int nvmlDeviceRegisterEvents(struct device *device, unsigned long long types, void *set)
{
    (void)set;
    ENTER(device);
    return types & ~0xBull ? NOT_SUPPORTED : OK;
}

struct event { struct device *device; unsigned long long type, data; unsigned instance, compute_instance; };

/* One byte per wait, in a file beside the control file, so that a test can tell a busy loop. */
static void count_wait(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s.waits", getenv("ZEROHOP_NVML_CONTROL"));
    FILE *file = fopen(path, "a");
    if (file) {
        fputc('.', file);
        fclose(file);
    }
}

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms)
{
    (void)set;
    count_wait();
    for (unsigned waited = 0;; waited += 5) {
        int answer = enter(__func__);
        if (answer) return answer;
        for (int board = 0; board < BOARDS; board++) {
            long long sequence = setting(board, "xid_seq", 0);
            if (sequence > xid_told[board]) {
                xid_told[board] = sequence;
                *event = (struct event){&devices[board][0], 0x8, (unsigned long long)setting(board, "xid", 0), 0, 0};
                return OK;
            }
        }
        for (int board = 0; board < BOARDS; board++)
            if (setting(board, "lost", 0)) return LOST;
        if (waited >= timeout_ms) return TIMEOUT;
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}
