// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Which file lies at an address, asked from the kernel's own list of the process's mappings: for a process that nobody
// has published yet (it is a millisecond old), or whose mappings changed since (exec, dlopen, dlclose). With the
// binary's tables, which are shared by all processes, the walk goes on as if it had been published. User space is told
// what was found, once, so that it can name the frames also when the process is gone by then.
//
// The list is a maple tree (kernel, include/linux/maple_tree.h, 6.1+): a node's address has its type in bits 3-6; a
// node is 256 bytes, a parent pointer, then pivots (the largest address of each slot, 0 behind the last one), then
// slots. It changes under our hands only when other threads of the process map something: what is found is checked.

#define MAX_TREE_LEVELS 6
#define MAPLE_PIVOTS 15      // of a leaf and of a range node
#define MAPLE_GAP_PIVOTS 9
#define NODE_LEAF 2  // types below are leaves
#define NODE_RANGE_WITH_GAPS 3
#define VM_EXECUTABLE 4
#define FILE_IS_BACKING 0x2000000  // FMODE_BACKING: the lower file of a stacked filesystem (overlay)
#define DEVICE_VDSO 0xffffffff

static __always_inline u64 kernel_word(u64 address) {
    u64 value = 0;
    bpf_probe_read_kernel(&value, 8, (void *)address);
    return value;
}

// Was this not told before? `value` tells apart what has the same key one after the other.
static __always_inline int tell_once(u64 start, u32 pid, u64 value) {
    struct told_key key = {};
    key.start = start;
    key.pid = pid;
    u64 *before = told.lookup(&key);
    if (before && *before == value)
        return 0;
    told.update(&key, &value);
    return 1;
}

// A number that changes when code was mapped or unmapped, so that what is mapped since is told anew.
static __always_inline u64 epoch_of_code(u32 pid, u64 mm) {
    struct told_key key = {};
    key.start = 2;
    key.pid = pid;
    u64 pages = kernel_word(mm + MM_EXECUTABLE_PAGES) << 32, epoch = pages;
    u64 *before = told.lookup(&key);
    if (before && (*before ^ pages) >> 32 == 0)
        return *before;
    if (before)
        epoch |= (u32)*before + 1;
    told.update(&key, &epoch);
    return epoch;
}

// Who the current process is, for user space, which may come too late to ask.
static __always_inline void tell_who(struct walk *w) {
    u64 mm = kernel_word(bpf_get_current_task() + TASK_MM);
    if (!tell_once(0, w->record.header.pid, mm ^ w->record.header.start_ns))
        return;
    struct who_message *who = (struct who_message *)w->scan;
    u64 leader = kernel_word(bpf_get_current_task() + TASK_GROUP_LEADER);
    u64 parent = kernel_word(leader + TASK_REAL_PARENT);
    u64 ids = kernel_word(leader + TASK_THREAD_PID);
    u32 level = 0;
    bpf_probe_read_kernel(&level, 4, (void *)(ids + PID_LEVEL));
    who->pid = w->record.header.pid;
    who->reason = MESSAGE_WHO;
    who->start_ns = w->record.header.start_ns;
    who->uid = w->record.header.uid;
    bpf_probe_read_kernel(who->name, sizeof(who->name), (void *)(leader + TASK_COMM));
    who->parent = 0;
    who->own_pid = 0;
    bpf_probe_read_kernel(&who->parent, 4, (void *)(parent + TASK_TGID));
    bpf_probe_read_kernel(&who->own_pid, 4, (void *)(ids + PID_NUMBERS + (u64)(level & 31) * 16));
    u64 begin = kernel_word(mm + MM_ARG_START), end = kernel_word(mm + MM_ARG_END);
    u32 size = end - begin < sizeof(who->command) ? end - begin : sizeof(who->command);  // what is too long is cut
    BOUND(size, 255);
    if (size > sizeof(who->command) || !mm || bpf_probe_read_user(who->command, size, (void *)begin))
        size = 0;
    who->command_bytes = size;
    if (messages.ringbuf_output(who, sizeof(*who), 0))
        count(COUNTER_MESSAGES_LOST);
}

// The vm_area_struct that may hold the address; 0: none.
static __always_inline u64 find_vma(struct walk *w, u64 mm, u64 address) {
    w->found_word = kernel_word(mm + MM_TREE_ROOT);
#pragma clang loop unroll(disable)
    for (int level = 0; level < MAX_TREE_LEVELS; level++) {
        u64 entry = w->found_word;
        if (!level && (entry & 3) != 2)
            return entry;  // a tree of one mapping: bit 1 marks a root that is a node
        u32 type = entry >> 3 & 15;
        if (bpf_probe_read_kernel(w->scan, 256, (void *)(entry & ~255ull)))
            return 0;
        u32 pivots = type == NODE_RANGE_WITH_GAPS ? MAPLE_GAP_PIVOTS : MAPLE_PIVOTS;
        w->found = pivots;
#pragma clang loop unroll(disable)
        for (int i = 0; i < MAPLE_PIVOTS; i++) {
            u32 n = i;
            if (n >= pivots)
                break;
            u32 at = n + 1;
            BOUND(at, 31);
            u64 pivot = w->scan[at];
            if (pivot >= address || (n && !pivot)) {
                w->found = n;
                break;
            }
        }
        u32 slot = w->found + pivots + 1;
        BOUND(slot, 31);
        w->found_word = w->scan[slot];
        if (type < NODE_LEAF)
            return w->found_word;
    }
    return 0;
}

// Identity of the file behind a mapping, as /proc/PID/maps and stat() give it.
static __always_inline void identify_file(u64 file, struct binary_key *key) {
    u64 inode = kernel_word(file + FILE_INODE);
#ifdef BACKING_FILE_DENTRY
    u32 mode = 0;
    bpf_probe_read_kernel(&mode, 4, (void *)(file + FILE_MODE));
    if (mode & FILE_IS_BACKING)
        inode = kernel_word(kernel_word(file + BACKING_FILE_DENTRY) + DENTRY_INODE);
#endif
    u32 nanoseconds = 0;
    key->inode = kernel_word(inode + INODE_NUMBER);
    u64 seconds = kernel_word(inode + INODE_MTIME_SECONDS);
    bpf_probe_read_kernel(&nanoseconds, 4, (void *)(inode + INODE_MTIME_NANOSECONDS));
    key->stamp = (seconds * 1000000000ull + nanoseconds) ^ kernel_word(inode + INODE_SIZE);
    bpf_probe_read_kernel(&key->device, 4, (void *)(kernel_word(inode + INODE_SUPER_BLOCK) + SUPER_BLOCK_DEVICE));
}

// Puts the mapping that holds a code address into w->local. 0 when there is none.
static __always_inline int ask_kernel(struct walk *w, u64 address) {
    u64 mm = kernel_word(bpf_get_current_task() + TASK_MM);
    u64 vma = mm ? find_vma(w, mm, address) : 0;
    if (!vma)
        return 0;
    u64 range[2] = {};
    if (bpf_probe_read_kernel(range, sizeof(range), (void *)(vma + VMA_START)))
        return 0;
    if (address < range[0] || address >= range[1] || !(kernel_word(vma + VMA_FLAGS) & VM_EXECUTABLE))
        return 0;
    u32 n = w->n_local++;
    BOUND(n, 7);
    struct unwind_mapping *m = &w->local[n];
    m->start = range[0];
    m->end = range[1];
    m->kind = MAPPING_FRAME_POINTER;
    m->pages = 0;
    u64 file = kernel_word(vma + VMA_FILE), offset = kernel_word(vma + VMA_PAGE_OFFSET) << 12;
    struct binary_key key = {};
    if (file)
        identify_file(file, &key);
    else if (range[0] == kernel_word(mm + MM_VDSO))
        key.device = DEVICE_VDSO;
    struct unwind_binary *binary = 0;
    if (key.device)
        binary = unwind_binaries.lookup(&key);
    if (key.device)
        m->kind = MAPPING_NO_TABLE;
    if (binary) {
        u32 second = offset >= binary->code[1].begin && offset < binary->code[1].end;
        u64 delta = second ? binary->code[1].delta : binary->code[0].delta;
        m->bias = range[0] - offset - delta;
        m->first_page = binary->first_page;
        m->pages = binary->pages;
        m->page_base = binary->page_base;
        if (binary->pages)
            m->kind = MAPPING_TABLE;
        if (binary->python && !w->tables.python) {
            w->tables.python = binary->python;
            w->tables.python_bias = m->bias;
        }
    }
    w->record.header.flags |= FLAG_KERNEL_MAPPING;
    u64 identity = mm ^ key.inode ^ key.stamp ^ w->record.header.start_ns ^ w->epoch ^ !!binary;
    if (tell_once(range[0], w->record.header.pid, identity)) {
        struct mapping_message *message = (struct mapping_message *)w->scan;
        message->pid = w->record.header.pid;
        message->reason = MESSAGE_MAPPING;
        message->start = range[0];
        message->end = range[1];
        message->offset = offset;
        message->key = key;
        message->known = !!binary;
        message->pad = 0;
        message->time_ns = w->owner_ns;
        message->start_ns = w->record.header.start_ns;
        if (messages.ringbuf_output(message, sizeof(*message), 0))
            count(COUNTER_MESSAGES_LOST);
    }
    return 1;
}
