import time,contextlib,io
def test_x(tmp_path):
    from tests.command_line import fit
    from cifnet_pl.__main__ import main
    out=[]
    for i,more in enumerate([["--data.max_tasks","1"]]*3+[[],["--model.head.ridge","abc"],["--experiment",".."],["--data.max_tasks","1","--trainer.num_nodes","2"]]):
        t=time.process_time(); w=time.time(); 
        with contextlib.redirect_stdout(io.StringIO()),contextlib.redirect_stderr(io.StringIO()): fit(tmp_path/str(i),*more)
        out.append((more,time.process_time()-t,time.time()-w))
    for o in out: print(o)
    from tests.models import learned
    for n in("ncm","ridge"):
        t=time.process_time();learned(n);print(n,time.process_time()-t)
    from tests.cli.test_paper_configs import points_of,POINTS
    import cProfile,pstats
    p=cProfile.Profile(); p.enable()
    for n in POINTS:
        t=time.process_time();points_of(n);print(n,time.process_time()-t)
    p.disable(); pstats.Stats(p).sort_stats("tottime").print_stats(25)
