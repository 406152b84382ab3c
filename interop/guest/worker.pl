# worker.pl work DIR SAYS: works in DIR until the file SAYS.stop exists. Each round writes and syncs a block, and makes, renames and
# removes a directory and a file. SAYS.rounds has the number of complete rounds, SAYS.blocks the last round whose block was synced. An
# operation whose error and whose effect say that it was executed twice, or that its reply was lost, is a line of SAYS.doubts.
# worker.pl verify FILE SAYS: FILE must have the blocks that were synced, or at most one later one.
use strict;
use warnings;
use Fcntl;
use IO::Handle;

my ($how, $dir, $says) = @ARGV;
my ($blocks, $len) = (64, 192 << 10);

sub note { my ($name, $text) = @_; open(my $to, '>', "$says.$name.new") or die "$says: $!"; print $to $text; close($to); rename("$says.$name.new", "$says.$name") or die; }

if ($how eq 'verify') {
    open(my $from, '<', "$says.blocks") or die "$says.blocks: $!";
    my $synced = <$from>;
    open(my $file, '<', $dir) or die "$dir: $!";
    for my $round (($synced > $blocks ? $synced - $blocks + 1 : 1) .. $synced) {
        sysseek($file, $round % $blocks * $len, 0);
        sysread($file, my $block, $len) == $len or die "block of round $round is short";
        my @may = $round == $synced - $blocks + 1 ? ($round, $synced + 1) : ($round);
        grep({ $block eq pack('N', $_) x ($len / 4) } @may) or die 'block of round ' . $round . ' is of round ' . unpack('N', $block);
    }
    print "$synced rounds\n";
    exit 0;
}

sub once {
    my ($what, $operation, $was_done) = @_;
    return if $operation->();
    my $error = $!;
    ($!{EEXIST} || $!{ENOENT}) && $was_done->() or die "$what: $error";
    open(my $doubts, '>>', "$says.doubts") or die; print $doubts "$what: $error\n"; close($doubts);
}

chdir($dir) or die "$dir: $!";
open(my $file, '+>', 'blocks') or die "blocks: $!";
for (my $n = 1; !-e "$says.stop"; $n++) {
    sysseek($file, $n % $blocks * $len, 0) or die "seek: $!";
    syswrite($file, pack('N', $n) x ($len / 4)) == $len or die "write of round $n: $!";
    $file->sync or die "sync of round $n: $!";
    note('blocks', $n);
    once("mkdir $n", sub { mkdir("made.$n") }, sub { -d "made.$n" });
    once("rename of directory $n", sub { rename("made.$n", "moved.$n") }, sub { -d "moved.$n" && !-e "made.$n" });
    sysopen(my $new, "new.$n", O_CREAT | O_EXCL | O_WRONLY) or die "create $n: $!";
    close($new) or die "close of round $n: $!";
    once("rename $n", sub { rename("new.$n", "moved.$n/old") }, sub { -e "moved.$n/old" && !-e "new.$n" });
    once("unlink $n", sub { unlink("moved.$n/old") }, sub { !-e "moved.$n/old" });
    once("rmdir $n", sub { rmdir("moved.$n") }, sub { !-e "moved.$n" });
    note('rounds', $n);
}
close($file) or die "close: $!";
